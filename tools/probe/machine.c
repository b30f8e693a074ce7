/* The hardware of a virtual machine: its disks, the devices on its buses, and the names that it reports. */
#define _GNU_SOURCE
#include "probe.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECTOR 512LL /* bytes; the unit of sysfs, whatever the disk's own sector size is */

static int line_of(const char *folder, const char *entry, const char *file, char *line, int size)
{
    char path[512];
    FILE *opened;
    int found;

    snprintf(path, sizeof path, "%s/%s/%s", folder, entry, file);
    opened = fopen(path, "re");
    found = opened && fgets(line, size, opened);
    if (opened)
        fclose(opened);
    if (found)
        line[strcspn(line, "\n")] = 0;
    return found;
}

/* Report a hardware disk, which has a device; disks of the kernel, such as loop devices, have none. */
static void say_disk(const char *name)
{
    char line[64], device[512], label[64];
    DIR *there;

    snprintf(device, sizeof device, "/sys/block/%s/device", name);
    if ((there = opendir(device)) == NULL)
        return;
    closedir(there);
    if (!line_of("/sys/block", name, "size", line, sizeof line))
        return;
    snprintf(label, sizeof label, "disk.size.%.32s", name);
    say(label, "%lld", strtoll(line, NULL, 10) * SECTOR);
    if (line_of("/sys/block", name, "ro", line, sizeof line)) {
        snprintf(label, sizeof label, "disk.read_only.%.32s", name);
        say(label, "%.8s", line);
    }
}

/* Report one line for each device of a bus: the values of two of its files. */
static void say_bus(const char *bus, const char *name, const char *first, const char *second)
{
    char folder[256], label[64], one[64], two[64];
    DIR *devices;

    snprintf(folder, sizeof folder, "/sys/bus/%s/devices", bus);
    snprintf(label, sizeof label, "hardware.%s", name);
    if ((devices = opendir(folder)) == NULL) /* a kernel without this bus has no devices on it */
        return;
    for (struct dirent *entry; (entry = readdir(devices)) != NULL;)
        if (entry->d_name[0] != '.' && line_of(folder, entry->d_name, first, one, sizeof one) &&
            line_of(folder, entry->d_name, second, two, sizeof two))
            say(label, "%.32s:%.32s", one, two);
    closedir(devices);
}

int probe_hardware(char **arguments)
{
    static const char *const names[] = {"sys_vendor", "product_serial", "board_serial", "chassis_serial"};
    DIR *disks = opendir("/sys/block");

    (void)arguments;
    for (struct dirent *entry; disks && (entry = readdir(disks)) != NULL;)
        if (entry->d_name[0] != '.')
            say_disk(entry->d_name);
    if (disks)
        closedir(disks);
    say_bus("virtio", "virtio", "vendor", "device");
    say_bus("pci", "pci", "vendor", "device");
    say_bus("usb", "usb", "idVendor", "idProduct");
    for (size_t i = 0; i < LENGTH(names); i++) {
        char label[64], line[128];

        snprintf(label, sizeof label, "hardware.%s", names[i]);
        if (line_of("/sys/class/dmi", "id", names[i], line, sizeof line))
            say(label, "%.64s", line);
    }
    return 0;
}
