// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	loopback = "127.0.0.1"
	// firstPort is above what servers are commonly found at.
	firstPort = 10000
	// usualEphemeral is where Linux begins with the ports of outgoing connections if it
	// isn't told otherwise (ip(7), ip_local_port_range); other systems begin above it.
	usualEphemeral = 32768
	// fewestPorts is what has to be left below them.
	fewestPorts = 1000
	ownerOnly   = 0o600
)

// Address is a free address of loopback, host:port. See Ports.
func Address() (string, error) {
	ports, err := Ports(1)
	if err != nil {
		return "", err
	}

	return net.JoinHostPort(loopback, strconv.Itoa(ports[0])), nil
}

// Ports picks n ports of 127.0.0.1 for programs that can't be given a socket. Nobody
// listens on them, over TCP or UDP; nobody else who asks here is given them, in this
// process or another one of the user, until all others were; and no outgoing connection
// takes one before the program does, or while the program is down to be started again:
// they are below the system's ephemeral ports.
func Ports(n int) ([]int, error) {
	name := filepath.Join(os.TempDir(), fmt.Sprintf("hyperfleet-ports-%d", os.Getuid()))

	// The file holds the port that was picked last. Its lock ends with the process.
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, ownerOnly)
	if err != nil {
		return nil, fmt.Errorf("pick free ports: %w", err)
	}
	defer file.Close() //nolint:errcheck // what was written is a hint

	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("pick free ports: lock %s: %w", name, err)
	}

	last, err := io.ReadAll(io.LimitReader(file, 16)) //nolint:mnd // digits of a port, and then some
	if err != nil {
		return nil, fmt.Errorf("pick free ports: %w", err)
	}

	ports, err := after(string(last), n, ephemeral())
	if err != nil || n == 0 {
		return nil, err
	}

	// All of one width: the new number covers the old one.
	if _, err := file.WriteAt(fmt.Appendf(nil, "%05d\n", ports[n-1]), 0); err != nil {
		return nil, fmt.Errorf("pick free ports: %w", err)
	}

	return ports, nil
}

// after picks the n free ports that follow the last one, below the end and in a circle.
func after(last string, n, end int) ([]int, error) {
	var ports []int

	// What isn't a port says nothing: it begins anew.
	last, _, _ = strings.Cut(last, "\n")

	port, err := strconv.Atoi(last)
	if err != nil || port < firstPort || port >= end {
		port = end - 1
	}

	for range end - firstPort {
		if len(ports) == n {
			break
		}

		port++
		if port == end {
			port = firstPort
		}

		if free(port) {
			ports = append(ports, port)
		}
	}

	if len(ports) < n {
		return nil, fmt.Errorf("pick free ports: of %d to %d only %d are free, not %d", firstPort, end-1, len(ports), n)
	}

	return ports, nil
}

// free says whether a program can listen there.
func free(port int) bool {
	address := net.JoinHostPort(loopback, strconv.Itoa(port))

	stream, err := net.Listen("tcp", address) //nolint:noctx // it does not block
	if err != nil {
		return false
	}

	packets, err := net.ListenPacket("udp", address) //nolint:noctx // it does not block
	if err == nil {
		err = packets.Close()
	}

	return errors.Join(err, stream.Close()) == nil
}

// ephemeral is the first port of outgoing connections.
func ephemeral() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return usualEphemeral
	}

	var first int
	if _, err := fmt.Sscan(string(text), &first); err != nil || first < firstPort+fewestPorts {
		return usualEphemeral
	}

	return min(first, usualEphemeral)
}
