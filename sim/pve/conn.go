// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"sync/atomic"
)

// apiListener accepts connections that pveproxy's event loop reads: with TLS, and without.
type apiListener struct {
	net.Listener

	tls *tls.Config
}

func (l *apiListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &apiConn{Conn: raw, config: l.tls}, nil
}

// apiConn is a connection of the API. What pveproxy reads in another way than package http, the connection responds to
// or changes before the package reads it. This concerns the first request of a connection.
type apiConn struct {
	net.Conn

	config *tls.Config
	// secure is nil before the handshake, and for a client without TLS.
	secure  atomic.Pointer[tls.Conn]
	request io.Reader
}

const (
	// recordHandshake is the first byte of a client that speaks TLS.
	recordHandshake = 22
	// maxPeekedHeader limits the header that the connection reads before package http does.
	maxPeekedHeader = 64 << 10
)

var (
	requestLine    = regexp.MustCompile(`^[A-Za-z]+ \S+ HTTP/(\d+\.\d+)\r?\n$`)
	hostHeader     = regexp.MustCompile(`(?im)^host:`)
	negativeLength = regexp.MustCompile(`(?im)^content-length: *-.*\n`)
)

// Read implements [net.Conn].
func (c *apiConn) Read(p []byte) (int, error) {
	if c.request == nil {
		if err := c.open(); err != nil {
			return 0, err
		}
	}
	return c.request.Read(p)
}

// Write implements [net.Conn].
func (c *apiConn) Write(p []byte) (int, error) {
	if secure := c.secure.Load(); secure != nil {
		return secure.Write(p)
	}
	return c.Conn.Write(p)
}

// Close implements [net.Conn].
func (c *apiConn) Close() error {
	if secure := c.secure.Load(); secure != nil {
		return secure.Close()
	}
	return c.Conn.Close()
}

// open starts TLS and reads the header of the first request.
func (c *apiConn) open() error {
	reader := bufio.NewReader(c.Conn)
	first, err := reader.Peek(1)
	if err != nil {
		return err
	}
	if first[0] == recordHandshake {
		secure := tls.Server(peekedConn{c.Conn, reader}, c.config)
		if err := secure.HandshakeContext(context.Background()); err != nil {
			return err
		}
		c.secure.Store(secure)
		reader = bufio.NewReader(secure)
	}
	line, err := reader.ReadBytes('\n')
	if err != nil {
		return err
	}
	version := requestLine.FindSubmatch(line)
	switch {
	case version == nil:
		return c.refuse(http.StatusBadRequest, "bad request")
	case string(version[1]) != "1.0" && string(version[1]) != "1.1":
		return c.refuse(http.StatusVariantAlsoNegotiates, "http protocol version "+string(version[1])+" not supported")
	}
	header, err := readHeader(reader)
	if err != nil {
		return err
	}
	if !hostHeader.Match(header) {
		line = append(line, "Host:\r\n"...) // package http requires it
	}
	header = negativeLength.ReplaceAll(header, nil) // package http refuses it
	c.request = io.MultiReader(bytes.NewReader(append(line, header...)), reader)
	return nil
}

// readHeader reads a header up to its empty line, or a part of it if it is too large.
func readHeader(reader *bufio.Reader) ([]byte, error) {
	var header []byte
	for len(header) < maxPeekedHeader {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		header = append(header, line...)
		if len(bytes.TrimSpace(line)) == 0 {
			break
		}
	}
	return header, nil
}

// refuse responds to what is no request, and ends the connection.
func (c *apiConn) refuse(status int, reason string) error {
	_, err := fmt.Fprintf(c, "HTTP/1.0 %d %s\r\nConnection: close\r\nServer: pve-api-daemon/3.0\r\nContent-Length: %d\r\n\r\n%s",
		status, reason, len(reason), reason)
	if err != nil {
		return err
	}
	return io.EOF
}

// peekedConn is a connection of which a reader has read a part.
type peekedConn struct {
	net.Conn

	reader io.Reader
}

func (c peekedConn) Read(p []byte) (int, error) { return c.reader.Read(p) }

// connKey is the key of the connection in the context of a request.
type connKey struct{}

// redirectPlain redirects a client that speaks HTTP without TLS. It returns false for other clients.
func redirectPlain(w http.ResponseWriter, r *http.Request) bool {
	conn, ok := r.Context().Value(connKey{}).(*apiConn)
	if !ok || conn.secure.Load() != nil {
		return false
	}
	w.Header().Set("Location", "https://"+r.Host+r.URL.RequestURI())
	w.WriteHeader(http.StatusMovedPermanently)
	_, _ = io.WriteString(w, http.StatusText(http.StatusMovedPermanently))
	return true
}
