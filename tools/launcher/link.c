/* The hardware address of the sliver's link, which the node's permanent neighbour entry contains. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher.h"

static int is_veth(int control, const char *name)
{
    struct ethtool_drvinfo about = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq request = {.ifr_data = (void *)&about};

    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    return ioctl(control, SIOCETHTOOL, &request) == 0 && strcmp(about.driver, "veth") == 0;
}

/*
 * libvirt sets the address after it has created the link, outside the container. There udev gives each new link an
 * address too (MACAddressPolicy=persistent), which on a busy host may happen later. Inside, udev cannot change it.
 */
void set_link_address(const struct launch *launch)
{
    struct ifreq request = {.ifr_hwaddr.sa_family = ARPHRD_ETHER};
    unsigned char *mac = (unsigned char *)request.ifr_hwaddr.sa_data;
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct if_nameindex *links = if_nameindex();

    if (control < 0 || links == NULL)
        die("cannot list the container's links");
    errno = 0;
    if (sscanf(launch->mac, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) != 6)
        die("mac=%s is not a hardware address", launch->mac);
    for (struct if_nameindex *link = links; link->if_index; link++) {
        snprintf(request.ifr_name, sizeof request.ifr_name, "%s", link->if_name);
        if (is_veth(control, link->if_name) && ioctl(control, SIOCSIFHWADDR, &request) < 0)
            die("cannot set the address of %s", link->if_name);
    }
    if_freenameindex(links);
    close(control);
    errno = 0;
}
