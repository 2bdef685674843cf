/*
 * The smallest firmware that has a console: writes a banner on the serial port of QEMU's virt machine, then
 * sends back what it receives. It runs in place of OpenSBI and takes no processor time while nothing comes.
 */
	.globl	_start
_start:
	csrr	t0, mhartid
	bnez	t0, sleep
	li	s0, 0x10000000		/* 16550 */
	li	s1, 0x0200bff8		/* CLINT: mtime */
	li	s2, 0x02004000		/* CLINT: mtimecmp of hart 0 */
	li	t0, 0x80		/* a timer interrupt ends wfi, and is not taken */
	csrw	mie, t0
	la	s3, banner
next:
	lbu	a0, 0(s3)
	beqz	a0, receive
	jal	put
	addi	s3, s3, 1
	j	next

receive:
	lbu	t0, 5(s0)
	andi	t0, t0, 0x01
	beqz	t0, rest
	lbu	a0, 0(s0)
	jal	put
	j	receive
rest:
	ld	t0, 0(s1)
	li	t1, 100000		/* 10 ms */
	add	t0, t0, t1
	sd	t0, 0(s2)
	wfi
	j	receive

put:
	lbu	t0, 5(s0)
	andi	t0, t0, 0x20
	beqz	t0, put
	sb	a0, 0(s0)
	ret

sleep:
	wfi
	j	sleep

banner:
	.asciz	"OpenSBI v0.0 (echo)\r\nready\r\n"
