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
	// firstPort is the first port that is picked. It is above the well-known ports of servers.
	firstPort = 10000
	// defaultEphemeralPort is the first port for outgoing connections in the default configuration of
	// Linux (ip(7), ip_local_port_range). Other systems start at a higher port.
	defaultEphemeralPort = 32768
	// minPortCount is the minimum number of ports below the ephemeral ports.
	minPortCount = 1000
	ownerOnly    = 0o600
)

// PickAddress returns a free loopback address as host:port. See PickPorts.
func PickAddress() (string, error) {
	ports, err := PickPorts(1)
	if err != nil {
		return "", err
	}

	return net.JoinHostPort(loopback, strconv.Itoa(ports[0])), nil
}

// PickPorts picks n ports of 127.0.0.1 for programs that cannot inherit a socket. No process
// listens on these ports with TCP or UDP. Other calls, in this process or another process of the
// same user, do not return the same ports until all other ports have been returned. The ports are
// below the system's ephemeral ports, so no outgoing connection occupies a port before the program
// starts, or while the program restarts.
func PickPorts(n int) ([]int, error) {
	name := filepath.Join(os.TempDir(), fmt.Sprintf("hyperfleet-ports-%d", os.Getuid()))

	// The file contains the port that was picked last. The kernel releases the lock when the process ends.
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, ownerOnly)
	if err != nil {
		return nil, fmt.Errorf("pick free ports: %w", err)
	}
	defer file.Close() //nolint:errcheck // the content of the file is only a hint

	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("pick free ports: lock %s: %w", name, err)
	}

	last, err := io.ReadAll(io.LimitReader(file, 16)) //nolint:mnd // more than the digits of a port
	if err != nil {
		return nil, fmt.Errorf("pick free ports: %w", err)
	}

	ports, err := nextFreePorts(string(last), n, firstEphemeralPort())
	if err != nil || n == 0 {
		return nil, err
	}

	// All numbers have the same width, so the new number overwrites the old one completely.
	if _, err := file.WriteAt(fmt.Appendf(nil, "%05d\n", ports[n-1]), 0); err != nil {
		return nil, fmt.Errorf("pick free ports: %w", err)
	}

	return ports, nil
}

// nextFreePorts returns the n free ports below end that follow the last port. After the port before end, it continues
// with firstPort. fileText is the content of the file with the last port.
func nextFreePorts(fileText string, n, end int) ([]int, error) {
	var ports []int

	// If the file does not contain a valid port, start with firstPort.
	last, _, _ := strings.Cut(fileText, "\n")

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

		if isFree(port) {
			ports = append(ports, port)
		}
	}

	if len(ports) < n {
		return nil, fmt.Errorf("pick free ports: only %d of the ports %d to %d are free, want %d", len(ports), firstPort, end-1, n)
	}

	return ports, nil
}

// isFree returns whether a program can listen on the port.
func isFree(port int) bool {
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

// firstEphemeralPort returns the end of the ports to pick: the first port for outgoing connections, or defaultEphemeralPort
// if that is lower. If fewer than minPortCount ports would be left, it returns defaultEphemeralPort too, although
// outgoing connections may then occupy picked ports.
func firstEphemeralPort() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return defaultEphemeralPort
	}

	var first int
	if _, err := fmt.Sscan(string(text), &first); err != nil || first < firstPort+minPortCount {
		return defaultEphemeralPort
	}

	return min(first, defaultEphemeralPort)
}
