// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
)

// A host that sends a length that libvirt's protocol does not allow is disconnected, before the library allocates
// the memory.
func TestMessagesOfInvalidLengthEndTheConnection(t *testing.T) {
	t.Parallel()

	message := func(size uint32) []byte {
		return append(binary.BigEndian.AppendUint32(nil, size), make([]byte, 24)...)
	}

	for name, c := range map[string]struct {
		sent []byte
		want int
	}{
		"two messages":     {append(message(28), message(28)...), 56},
		"a huge message":   {append(message(28), message(1<<31)...), 28},
		"a short message":  {message(8), 0},
		"part of a length": {append(message(28), 0, 0), 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			near, far := net.Pipe()

			go func() {
				for _, b := range c.sent { // byte by byte, so that a length is read in parts
					if _, err := far.Write([]byte{b}); err != nil {
						break
					}
				}

				_ = far.Close()
			}()

			got, _ := io.ReadAll(libvirt.NewWire(near))
			if len(got) < c.want || len(got) > c.want+3 {
				t.Errorf("read %d bytes, want %d", len(got), c.want)
			}
		})
	}
}

func TestURIs(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"qemu+tls://a.example.com/system":            "tls a.example.com:16514 qemu:///system",
		"qemu+tls://[2001:db8::1]:1/system":          "tls [2001:db8::1]:1 qemu:///system",
		"qemu+ssh://me@a/system":                     "ssh a:22 qemu:///system",
		"qemu+unix:///session?socket=/run/libvirt/s": "unix  qemu:///session",
		"qemu+tls:///system":                         "the host is missing",
		"qemu+tcp://a/system":                        "the transport must be tls, ssh or unix",
		"xen+tls://a/system":                         "the driver must be qemu",
		"qemu+tls://a/embed":                         "the path must be /system or /session",
		"qemu+ssh://me:secret@a/system":              "must not contain a password",
		"qemu+unix://a/system":                       "a Unix socket has no host",
	} {
		transport, address, driver, err := libvirt.ParseURI(text)

		got := strings.Join([]string{transport, address, driver}, " ")
		if err != nil {
			got = err.Error()
		}

		if !strings.Contains(got, want) || err != nil && !hypervisor.Is(err, hypervisor.Rejected) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// UUIDs and MAC addresses are computed, so that they are known before a machine is created.
func TestIdentifiersOfMachines(t *testing.T) {
	t.Parallel()

	uuid, mac := libvirt.MachineIDs("operator", "cluster", 100000, "claim")
	again, sameMAC := libvirt.MachineIDs("operator", "cluster", 100000, "claim")

	if uuid != again || mac != sameMAC {
		t.Errorf("the identifiers of a machine change: %x %s, %x %s", uuid, mac, again, sameMAC)
	}

	if uuid[6]>>4 != 8 || uuid[8]>>6 != 2 || !strings.HasPrefix(mac, "52:") {
		t.Errorf("invalid identifiers %x, %s", uuid, mac)
	}

	seen := map[string]bool{mac: true}

	for id := 100001; id < 110000; id++ {
		_, mac := libvirt.MachineIDs("operator", "cluster", id, "claim")
		if seen[mac] {
			t.Fatalf("two machines of a cluster have the MAC address %s", mac)
		}

		seen[mac] = true
	}

	for _, other := range [][2]string{{"another operator", "cluster"}, {"operator", "another cluster"}} {
		if u, m := libvirt.MachineIDs(other[0], other[1], 100000, "claim"); u == uuid || m == mac {
			t.Errorf("%v: the same identifiers %x, %s", other, u, m)
		}
	}
}
