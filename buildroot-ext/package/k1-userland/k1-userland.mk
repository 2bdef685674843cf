################################################################################
#
# k1-userland
#
################################################################################

K1_USERLAND_VERSION = 0.1.0
K1_USERLAND_SITE = $(BR2_EXTERNAL_K1_PATH)/userland
K1_USERLAND_SITE_METHOD = local
K1_USERLAND_LICENSE = Apache-2.0
K1_USERLAND_LICENSE_FILES = LICENSE
K1_USERLAND_DEPENDENCIES = host-pkgconf jansson libevent libsodium pcre2 zlib
# Another compiler than the project's own may warn of more.
K1_USERLAND_CONF_OPTS = -Dtests=false -Dwerror=false

define K1_USERLAND_COPY_LICENSE
	cp $(BR2_EXTERNAL_K1_PATH)/LICENSE $(@D)/LICENSE
endef
K1_USERLAND_POST_RSYNC_HOOKS += K1_USERLAND_COPY_LICENSE

$(eval $(meson-package))
