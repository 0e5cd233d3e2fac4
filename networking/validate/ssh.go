// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

const (
	// maxGreeting is the maximum number of bytes that are read until the identification of a server.
	maxGreeting          = 8 << 10
	identificationPrefix = "SSH-"
)

var errNoBanner = errors.New("the server is not an SSH server: its first lines have no SSH identification")

// checkSSHBanner opens a connection and waits for the identification of an SSH server. The server may send
// other lines before the identification (RFC 4253, 4.2).
func checkSSHBanner(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("connect to SSH: %w", err)
	}
	defer func() { _ = conn.Close() }()

	// Close the connection when the context ends, so a blocked read returns.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	lines := bufio.NewScanner(io.LimitReader(conn, maxGreeting))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), identificationPrefix) {
			return nil
		}
	}

	if ctx.Err() != nil {
		return fmt.Errorf("read SSH banner of %s: the server sends nothing", address)
	}

	return fmt.Errorf("read SSH banner of %s: %w", address, errNoBanner)
}
