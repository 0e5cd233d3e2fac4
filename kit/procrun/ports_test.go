// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// useCounterFile makes PickPorts start with the first port, and returns the file with the last picked port.
func useCounterFile(t *testing.T) string {
	t.Helper()

	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)

	return filepath.Join(dir, fmt.Sprintf("hyperfleet-ports-%d", os.Getuid()))
}

func pickPorts(t *testing.T, n int) []int {
	t.Helper()

	got, err := procrun.PickPorts(n)
	if err != nil {
		t.Fatal(err)
	}

	if len(got) != n {
		t.Fatalf("Ports(%d) = %v", n, got)
	}

	return got
}

func TestPortsAreUnique(t *testing.T) {
	useCounterFile(t)

	const (
		askers = 8
		rounds = 20
		each   = 3
	)

	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		seen = map[int]bool{}
	)

	for range askers {
		all.Go(func() {
			for range rounds {
				got, err := procrun.PickPorts(each)
				if err != nil {
					t.Error(err)
				}

				mu.Lock()

				for _, port := range got {
					if seen[port] {
						t.Errorf("port %d was picked twice", port)
					}

					seen[port] = true
				}

				mu.Unlock()
			}
		})
	}

	all.Wait()

	if len(seen) != askers*rounds*each {
		t.Errorf("%d ports were picked, want %d", len(seen), askers*rounds*each)
	}
}

// The local port of a connection is never picked, and ports in use are skipped.
func TestPortsInUseAreSkipped(t *testing.T) {
	counter := useCounterFile(t)
	first := pickPorts(t, 1)[0]

	stream, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+1)))
	if err != nil {
		t.Skipf("port %d is in use: %v", first+1, err)
	}
	defer stream.Close()

	packets, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+2)))
	if err != nil {
		t.Skipf("port %d is in use: %v", first+2, err)
	}
	defer packets.Close()

	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", stream.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	if local, ok := conn.LocalAddr().(*net.TCPAddr); !ok || local.Port <= first {
		t.Errorf("a connection has the local address %v, want a port of at least %d", conn.LocalAddr(), first)
	}

	if got := pickPorts(t, 1)[0]; got <= first+2 {
		t.Errorf("Ports() = %d, want one above %d, which is in use", got, first+2)
	}

	// Content that is not a port is ignored.
	for _, text := range []string{"", "x", "99999\n", "80\n", "10000000000000000000000"} {
		if err := os.WriteFile(counter, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		if got := pickPorts(t, 2); got[0] > first || got[1] <= got[0] {
			t.Errorf("after %q, Ports(2) = %v, want it to restart at %d or less", text, got, first)
		}

		if again := pickPorts(t, 1)[0]; again <= first {
			t.Errorf("after %q, the second call of Ports(1) = %d repeats the last port", text, again)
		}
	}
}

func TestPortsWrapAround(t *testing.T) {
	counter := useCounterFile(t)
	first := pickPorts(t, 1)[0]

	if err := os.WriteFile(counter, []byte("32767\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	if got := pickPorts(t, 1)[0]; got > first {
		t.Errorf("after the last one, Ports(1) = %d, want at most %d", got, first)
	}

	if _, err := procrun.PickPorts(1 << 20); err == nil {
		t.Error("a million ports were picked")
	}
}

func TestAddress(t *testing.T) {
	useCounterFile(t)

	address, err := procrun.PickAddress()
	if err != nil {
		t.Fatal(err)
	}

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}

	if err := listener.Close(); err != nil {
		t.Error(err)
	}

	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))

	if _, err := procrun.PickAddress(); err == nil {
		t.Error("no error although the counter file cannot be written")
	}
}
