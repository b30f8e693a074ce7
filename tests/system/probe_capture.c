/*
 * Captures a packet of its own on loopback with libpcap, as tcpdump does, and prints `capture=ok` or libpcap's complaint.
 * The argument is the buffer to ask for, in bytes; 0: libpcap's default. libpcap's functions are declared here: its
 * headers are not needed for its library to be there.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

typedef struct pcap pcap_t;
pcap_t *pcap_create(const char *device, char *error);
int pcap_set_buffer_size(pcap_t *capture, int size);
int pcap_set_timeout(pcap_t *capture, int milliseconds);
int pcap_activate(pcap_t *capture);
char *pcap_geterr(pcap_t *capture);
int pcap_next_ex(pcap_t *capture, void **header, const unsigned char **data);

int main(int argc, char **argv)
{
    char error[256] = "";
    const unsigned char *data;
    void *header;
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int size = argc > 1 ? atoi(argv[1]) : 0, out = socket(AF_INET, SOCK_DGRAM, 0), found = 0;
    pcap_t *capture = pcap_create("lo", error);

    if (capture == NULL || (size && pcap_set_buffer_size(capture, size) != 0) || pcap_set_timeout(capture, 100) != 0 ||
        pcap_activate(capture) < 0) {
        printf("capture=%s\n", capture ? pcap_geterr(capture) : error);
        return 1;
    }
    for (int i = 0; i < 100 && found != 1; i++) {
        sendto(out, "x", 1, 0, (struct sockaddr *)&to, sizeof to);
        found = pcap_next_ex(capture, &header, &data);
    }
    printf("capture=%s\n", found == 1 ? "ok" : "nothing came");
    return 0;
}
