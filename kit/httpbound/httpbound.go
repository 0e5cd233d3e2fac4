// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package httpbound

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

const (
	// MaxBody is the most bytes of one answer, decompressed. The largest that is wanted, a
	// page of a platform's list, has some hundred kilobytes.
	MaxBody = 8 << 20

	// MaxHeader is the most bytes of an answer's header.
	MaxHeader = 256 << 10
	// headerTimeout is longer than any long poll.
	headerTimeout = 2 * time.Minute
)

// TooLargeError is an answer that goes on beyond the limit.
type TooLargeError struct {
	// Host is the server's.
	Host string
	// Limit in bytes.
	Limit int64
}

// Error names the server and the limit.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the answer of %s has more than %d bytes: check that the URL is the API's", e.Host, e.Limit)
}

// Trusting is how TLS is spoken to servers of which the CAs in a file, in PEM, vouch, or one of the
// given ones, such as the system's; beside may be nil.
func Trusting(file string, beside *x509.CertPool) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}

	pool, err := inputbound.Authorities(pem, beside)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}

	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// Plain is a transport as http.DefaultTransport is, for settings of a caller's own, with
// bounds on headers. Its bodies have none: see Transport.
func Plain() *http.Transport {
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		// Somebody replaced the default; what matters of it is this.
		base = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: headerTimeout}
	}

	out := base.Clone()
	out.MaxResponseHeaderBytes = MaxHeader
	out.ResponseHeaderTimeout = headerTimeout

	return out
}

//nolint:gochecknoglobals // as http.DefaultTransport: one pool of connections
var shared = sync.OnceValue(func() http.RoundTripper { return Transport(Plain()) })

// Shared is the transport of clients without settings of their own, with all bounds.
func Shared() http.RoundTripper { return shared() }

// Transport bounds the bodies of another to MaxBody. Reading on is a *TooLargeError.
func Transport(next http.RoundTripper) http.RoundTripper { return Within(next, MaxBody) }

// Within is Transport with a limit of its own, for servers that an administrator names and whose
// lists are longer.
func Within(next http.RoundTripper, limit int64) http.RoundTripper { return bounded{next, limit} }

type bounded struct {
	next  http.RoundTripper
	limit int64
}

// RoundTrip makes one call.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}

	// What is announced uncompressed need not be read.
	if resp.ContentLength > b.limit {
		_ = resp.Body.Close()

		return nil, &TooLargeError{Host: r.URL.Host, Limit: b.limit}
	}

	resp.Body = &body{ReadCloser: resp.Body, left: b.limit, limit: b.limit, host: r.URL.Host}

	return resp, nil
}

// CloseIdleConnections closes those of the transport below.
func (b bounded) CloseIdleConnections() {
	if closer, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

type body struct {
	io.ReadCloser

	left, limit int64
	host        string
}

// Read reads up to the limit, and one byte more to see whether that was all.
func (b *body) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, &TooLargeError{Host: b.host, Limit: b.limit}
	}

	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}

	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, &TooLargeError{Host: b.host, Limit: b.limit}
	}

	return n, err
}

// Safe says whether credentials may be sent to a URL: its scheme is https, or http on this
// machine's own loopback interface.
func Safe(u *url.URL) bool {
	if u.Hostname() == "" {
		return false
	}

	if u.Scheme == "https" {
		return true
	}

	addr, err := netip.ParseAddr(u.Hostname())

	return u.Scheme == "http" && (u.Hostname() == "localhost" || err == nil && addr.Unmap().IsLoopback())
}
