// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/luthermonson/go-proxmox"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

const (
	dialTimeout = 10 * time.Second
	// ticketRenewAfter is the age at which the client renews a ticket. Proxmox accepts a ticket for two
	// hours.
	ticketRenewAfter = 90 * time.Minute
	userAgent        = "hyperfleet"
	// maxResponseBytes is the largest accepted size of one response. A list of ten thousand machines has
	// about eight million bytes.
	maxResponseBytes = 64 << 20
)

// client calls the Proxmox API. Each call has a timeout and uses the session's credentials, and the client
// classifies its errors. A client is safe for concurrent use.
type client struct {
	base          string
	credentials   hypervisor.Credentials
	http          *http.Client
	transport     *transport
	httpTransport *http.Transport
	// wrap wraps a transport for metrics and traces.
	wrap  func(http.RoundTripper) http.RoundTripper
	clock clock.WithTicker

	// loginMu guards session and renewAt, and is held while a ticket is requested.
	loginMu sync.Mutex
	session *proxmox.Session
	renewAt time.Time
}

func newClient(config hypervisor.Config, options hypervisor.Options, clk clock.WithTicker) (*client, error) {
	base, err := parseEndpoint(config.Endpoint)
	if err != nil {
		return nil, err
	}

	tlsConfig := config.TLS
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}

	tlsConfig = tlsConfig.Clone()
	if tlsConfig.ClientSessionCache == nil {
		// Proxmox closes the connection after each upload and after each error, so TLS sessions are
		// resumed.
		tlsConfig.ClientSessionCache = tls.NewLRUClientSessionCache(idleConns)
	}

	c := &client{base: base, credentials: config.Credentials, clock: clk}
	// The transport uses HTTP/1.1 only, because Proxmox writes error texts in the reason phrase of the
	// status line.
	c.httpTransport = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  0,
		MaxResponseHeaderBytes: bounds.MaxHeaderBytes,
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleLifetime,
	}

	c.wrap = options.WrapTransport
	if c.wrap == nil {
		c.wrap = func(next http.RoundTripper) http.RoundTripper { return next }
	}

	c.transport = newTransport(c.wrap(bounds.LimitBodiesTo(c.httpTransport, maxResponseBytes)), clk, config.CallsPerNode)
	c.http = &http.Client{
		Transport: c.transport,
		// The client follows no redirect, because a redirect could send the credentials to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}

	return c, nil
}

// parseEndpoint validates an endpoint and returns the URL with the API path appended.
func parseEndpoint(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "https" {
		return "", &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "EndpointInvalid",
			Message: fmt.Sprintf("endpoint %q must be an https URL such as https://pve.example.com:8006/api2/json", endpoint),
		}
	}

	path := strings.TrimSuffix(u.Path, "/")
	if !strings.HasSuffix(path, apiPrefix) {
		path += apiPrefix
	}

	return u.Scheme + "://" + u.Host + path, nil
}

func (c *client) host() string {
	u, err := url.Parse(c.base)
	if err != nil {
		return c.base
	}

	return u.Host
}

// principal returns the name of the token or the user for messages.
func (c *client) principal() string {
	switch {
	case c.credentials.TokenID != "":
		return c.credentials.TokenID
	case c.credentials.Username != "":
		return c.credentials.Username
	default:
		return "the client certificate"
	}
}

func (c *client) close() { c.httpTransport.CloseIdleConnections() }

// withSession runs do with a library client for the current session. If the server rejects the ticket,
// withSession gets a new ticket and runs do once more.
func (c *client) withSession(ctx context.Context, do func(*proxmox.Client) error, extra ...proxmox.Option) error {
	api, session, err := c.newAPIClient(ctx, nil, extra)
	if err != nil {
		return err
	}

	err = do(api)
	if session == nil || !isUnauthorized(err) {
		return err
	}

	api, _, err = c.newAPIClient(ctx, session, extra)
	if err != nil {
		return err
	}

	return do(api)
}

func isUnauthorized(err error) bool {
	apiErr, ok := errors.AsType[*APIError](err)

	return ok && apiErr.Status == http.StatusUnauthorized
}

// newAPIClient returns a library client and its session. The session is nil for an API token and for a client
// certificate. Each call gets its own library client that never changes, because the library's ticket renewal
// is not safe for concurrent calls. stale is the session that the server has just rejected, or nil.
func (c *client) newAPIClient(ctx context.Context, stale *proxmox.Session, extra []proxmox.Option,
) (*proxmox.Client, *proxmox.Session, error) {
	options := append([]proxmox.Option{proxmox.WithHTTPClient(c.http), proxmox.WithUserAgent(userAgent)}, extra...)

	switch {
	case c.credentials.TokenID != "":
		options = append(options, proxmox.WithAPIToken(c.credentials.TokenID, c.credentials.TokenSecret))

		return proxmox.NewClient(c.base, options...), nil, nil
	case c.credentials.Username == "":
		return proxmox.NewClient(c.base, options...), nil, nil
	}

	session, err := c.ensureSession(ctx, stale)
	if err != nil {
		return nil, nil, err
	}

	options = append(options, proxmox.WithSession(session.Ticket, session.CSRFPreventionToken))

	return proxmox.NewClient(c.base, options...), session, nil
}

// ensureSession returns a session that is neither stale nor due for renewal. If the old ticket is still
// valid, ensureSession uses the ticket to renew the session. Otherwise it logs in with the password.
func (c *client) ensureSession(ctx context.Context, stale *proxmox.Session) (*proxmox.Session, error) {
	c.loginMu.Lock()
	defer c.loginMu.Unlock()

	old := c.session
	if old != nil && old != stale && c.clock.Now().Before(c.renewAt) {
		return old, nil
	}

	if old != nil && old != stale {
		if session, err := c.logIn(ctx, old.Username, old.Ticket); err == nil {
			return session, nil
		}
	}

	return c.logIn(ctx, c.credentials.Username, c.credentials.Password)
}

// logIn requests a ticket and stores it as the current session. The caller must hold loginMu.
func (c *client) logIn(ctx context.Context, username, password string) (*proxmox.Session, error) {
	api := proxmox.NewClient(c.base, proxmox.WithHTTPClient(c.http), proxmox.WithUserAgent(userAgent))

	session, err := api.Ticket(ctx, &proxmox.Credentials{Username: username, Password: password})
	if err != nil {
		// A login changes nothing on the server, so a login without a response is classified like a read
		// and can be retried.
		return nil, c.classify("log in to "+c.host(), http.MethodGet, err)
	}

	if session == nil || session.Ticket == "" {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "AuthenticationFailed",
			"log in to %s: Proxmox issued no ticket for %s. If the user needs a second factor, "+
				"use an API token instead", c.host(), username)
	}

	if session.Username == "" {
		session.Username = username
	}

	c.session, c.renewAt = session, c.clock.Now().Add(ticketRenewAfter)

	return session, nil
}
