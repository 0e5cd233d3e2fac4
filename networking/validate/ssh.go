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
	// maxGreeting is what is read of what a server says before its identification.
	maxGreeting = 8 << 10
	identity    = "SSH-"
)

var errNoBanner = errors.New("no SSH server answers there: the first lines hold no SSH identification")

// banner opens a connection and waits for the identification of an SSH server, before
// which it may say other lines (RFC 4253, 4.2).
func banner(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("connect to SSH: %w", err)
	}
	defer func() { _ = conn.Close() }()

	// Ends a read when the context ends.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	lines := bufio.NewScanner(io.LimitReader(conn, maxGreeting))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), identity) {
			return nil
		}
	}

	if ctx.Err() != nil {
		return fmt.Errorf("read banner of %s: it says nothing", address)
	}

	return fmt.Errorf("read banner of %s: %w", address, errNoBanner)
}
