include $(sort $(wildcard $(BR2_EXTERNAL_K1_PATH)/package/*/*.mk))

# Buildroot 2023.08 checks no hash of a custom version. Ours are pinned in sources.hash; a version that is not in it is
# an error, so add the hash of a version that you choose yourself.
define K1_CHECK_SOURCE
	BR_NO_CHECK_HASH_FOR= support/download/check-hash $(BR2_EXTERNAL_K1_PATH)/sources.hash \
		$($(PKG)_DL_DIR)/$($(PKG)_SOURCE) $($(PKG)_SOURCE)
endef
LINUX_POST_DOWNLOAD_HOOKS += K1_CHECK_SOURCE
LINUX_HEADERS_POST_DOWNLOAD_HOOKS += K1_CHECK_SOURCE
OPENSBI_POST_DOWNLOAD_HOOKS += K1_CHECK_SOURCE
UBOOT_POST_DOWNLOAD_HOOKS += K1_CHECK_SOURCE

# uboot.fragment names the environment without a path, and U-Boot looks it up where it is built.
define K1_UBOOT_ENVIRONMENT
	cp $(dir $(firstword $(call qstrip,$(BR2_TARGET_UBOOT_CONFIG_FRAGMENT_FILES))))k1.env $(@D)/k1.env
endef
UBOOT_PRE_CONFIGURE_HOOKS += K1_UBOOT_ENVIRONMENT

# The card's environment partition starts with what is compiled into U-Boot.
define K1_UBOOT_INITIAL_ENVIRONMENT
	$(TARGET_CONFIGURE_OPTS) $(UBOOT_MAKE) -C $(@D) $(UBOOT_MAKE_OPTS) u-boot-initial-env
	$(INSTALL) -D -m 0644 $(@D)/u-boot-initial-env $(BINARIES_DIR)/uboot.env.txt
endef
UBOOT_POST_INSTALL_IMAGES_HOOKS += K1_UBOOT_INITIAL_ENVIRONMENT

# U-Boot 2023.01 reads no file from a squashfs with fragments.
ROOTFS_SQUASHFS_ARGS += -no-fragments
