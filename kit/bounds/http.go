// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds

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
)

const (
	// MaxBodyBytes is the maximum size of a response body after decompression. The largest expected
	// response, a page of a platform's list, has some hundred kilobytes.
	MaxBodyBytes = 8 << 20

	// MaxHeaderBytes is the maximum size of a response header.
	MaxHeaderBytes = 256 << 10
	// headerTimeout is the timeout for the response header. It is longer than any long poll.
	headerTimeout = 2 * time.Minute
)

// ResponseTooLargeError is the error for a response body that exceeds the limit.
type ResponseTooLargeError struct {
	// Host is the host of the server.
	Host string
	// Limit is the limit in bytes.
	Limit int64
}

// Error names the server and the limit.
func (e *ResponseTooLargeError) Error() string {
	return fmt.Sprintf("the response of %s has more than %d bytes: check that the URL is that of the API", e.Host, e.Limit)
}

// LoadTLSConfig returns a TLS client configuration that trusts the CAs in a PEM file and those of
// base, such as the system's pool. base may be nil.
func LoadTLSConfig(file string, base *x509.CertPool) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}

	pool, err := ParseCABundle(pem, base)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}

	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// NewTransport returns a copy of http.DefaultTransport with limits on response headers. Callers may
// change its settings. Response bodies are not limited: wrap the transport with LimitBodies.
func NewTransport() *http.Transport {
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		// Other code replaced http.DefaultTransport. Use its most important settings.
		base = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: headerTimeout}
	}

	out := base.Clone()
	out.MaxResponseHeaderBytes = MaxHeaderBytes
	out.ResponseHeaderTimeout = headerTimeout

	return out
}

//nolint:gochecknoglobals // one connection pool, as with http.DefaultTransport
var sharedTransport = sync.OnceValue(func() http.RoundTripper { return LimitBodies(NewTransport()) })

// SharedTransport returns the transport for clients without settings of their own. It limits
// headers and bodies.
func SharedTransport() http.RoundTripper { return sharedTransport() }

// LimitBodies wraps a transport and limits its response bodies to MaxBodyBytes. Reading beyond the
// limit returns a *ResponseTooLargeError.
func LimitBodies(next http.RoundTripper) http.RoundTripper { return LimitBodiesTo(next, MaxBodyBytes) }

// LimitBodiesTo does the same as LimitBodies with a given limit. Use it for servers that an
// administrator configures and whose lists are longer.
func LimitBodiesTo(next http.RoundTripper, limit int64) http.RoundTripper {
	return limitedTransport{next, limit}
}

type limitedTransport struct {
	next  http.RoundTripper
	limit int64
}

// RoundTrip sends the request and limits the body of the response.
func (b limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}

	// If the uncompressed body is announced to be too large, do not read it.
	if resp.ContentLength > b.limit {
		_ = resp.Body.Close()

		return nil, &ResponseTooLargeError{Host: r.URL.Host, Limit: b.limit}
	}

	resp.Body = &limitedBody{ReadCloser: resp.Body, remaining: b.limit, limit: b.limit, host: r.URL.Host}

	return resp, nil
}

// CloseIdleConnections closes the idle connections of the wrapped transport.
func (b limitedTransport) CloseIdleConnections() {
	if closer, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

type limitedBody struct {
	io.ReadCloser

	remaining, limit int64
	host             string
}

// Read reads up to the limit, plus one byte to detect a body that exceeds the limit.
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.remaining < 0 {
		return 0, &ResponseTooLargeError{Host: b.host, Limit: b.limit}
	}

	if int64(len(p)) > b.remaining+1 {
		p = p[:b.remaining+1]
	}

	n, err := b.ReadCloser.Read(p)
	if b.remaining -= int64(n); b.remaining < 0 {
		return n - 1, &ResponseTooLargeError{Host: b.host, Limit: b.limit}
	}

	return n, err
}

// IsSecureURL returns whether credentials may be sent to a URL. The scheme must be https, or http
// if the host is on the loopback interface.
func IsSecureURL(u *url.URL) bool {
	if u.Hostname() == "" {
		return false
	}

	if u.Scheme == "https" {
		return true
	}

	addr, err := netip.ParseAddr(u.Hostname())

	return u.Scheme == "http" && (u.Hostname() == "localhost" || err == nil && addr.Unmap().IsLoopback())
}
