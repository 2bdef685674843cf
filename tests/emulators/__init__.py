"""Boards without hardware: a DFU device for the real libusb and udev, and a board on a serial line."""
