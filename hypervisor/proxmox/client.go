// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
)

const (
	// callTimeout is longer than the 30 s after which Proxmox says that a node did not
	// answer it.
	callTimeout   = 40 * time.Second
	uploadTimeout = 2 * time.Minute
	dialTimeout   = 10 * time.Second
	// ticketLife is when a ticket is renewed; Proxmox takes it for two hours.
	ticketLife = 90 * time.Minute
	userAgent  = "hyperfleet"
	// maxAnswer is the most bytes of one answer: a list of ten thousand machines has eight million.
	maxAnswer = 64 << 20
)

// client makes calls: each with a timeout, with the session's credentials, and with its
// errors classified. It is safe for concurrent use.
type client struct {
	base        string
	credentials hypervisor.Credentials
	http        *http.Client
	transport   *transport
	inner       *http.Transport
	clock       clock.WithTicker

	// login is held while a ticket is fetched; mu guards the two below.
	login   sync.Mutex
	mu      sync.Mutex
	session *proxmox.Session
	renewAt time.Time
}

func newClient(config hypervisor.Config, options hypervisor.Options, clk clock.WithTicker) (*client, error) {
	base, err := baseURL(config.Endpoint)
	if err != nil {
		return nil, err
	}

	tlsConfig := config.TLS
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}

	tlsConfig = tlsConfig.Clone()
	if tlsConfig.ClientSessionCache == nil {
		// Proxmox closes the connection after each upload and each error.
		tlsConfig.ClientSessionCache = tls.NewLRUClientSessionCache(idleConns)
	}

	c := &client{base: base, credentials: config.Credentials, clock: clk}
	// HTTP/1.1 only: the texts of errors stand in the status line's reason phrase.
	c.inner = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  0,
		MaxResponseHeaderBytes: httpbound.MaxHeader,
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleLifetime,
	}

	next := httpbound.Within(c.inner, maxAnswer)
	if options.Transport != nil {
		next = options.Transport(next)
	}

	c.transport = newTransport(next, clk, c.jitter, config.CallsPerNode)
	c.http = &http.Client{
		Transport: c.transport,
		// A redirect would carry the credentials elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}

	return c, nil
}

// baseURL completes an endpoint by the API's path.
func baseURL(endpoint string) (string, error) {
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

// who names the principal for messages.
func (c *client) who() string {
	switch {
	case c.credentials.TokenID != "":
		return c.credentials.TokenID
	case c.credentials.Username != "":
		return c.credentials.Username
	default:
		return "the client certificate"
	}
}

// jitter gives between half and all of d and a half.
func (c *client) jitter(d time.Duration) time.Duration { return wait.Jitter(d/2, 2) }

func (c *client) close() { c.inner.CloseIdleConnections() }

// call makes one call with a timeout. method and path as in the API viewer; params go in
// the query of GET and DELETE and in the body of POST and PUT. out may be nil.
func (c *client) call(ctx context.Context, doing, method, path string, params map[string]string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	if len(params) > 0 && (method == http.MethodGet || method == http.MethodDelete) {
		query := url.Values{}
		for k, v := range params {
			query.Set(k, v)
		}

		path += "?" + query.Encode()
		params = nil
	}

	err := c.withSession(ctx, func(api *proxmox.Client) error {
		switch method {
		case http.MethodGet:
			return api.Get(ctx, path, out)
		case http.MethodPost:
			return api.Post(ctx, path, body(params), out)
		case http.MethodPut:
			return api.Put(ctx, path, body(params), out)
		default:
			return api.Delete(ctx, path, out)
		}
	})

	return c.classify(doing, method, err)
}

// body keeps a nil map a nil body.
func body(params map[string]string) any {
	if params == nil {
		return map[string]string{}
	}

	return params
}

// upload sends a file to a storage and gives the task that puts it in its place.
func (c *client) upload(ctx context.Context, doing, path, name string, content []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()

	var upid string

	// The library's upload takes no context, so it is put in the request on its way.
	withContext := proxmox.WithRequestInterceptor(func(req *http.Request) error {
		*req = *req.WithContext(ctx)

		return nil
	})

	err := c.withSession(ctx, func(api *proxmox.Client) error {
		return api.UploadReader(path, map[string]string{"content": "iso"}, name,
			bytes.NewReader(content), int64(len(content)), &upid)
	}, withContext)

	return upid, c.classify(doing, http.MethodPost, err)
}

// withSession runs do with the library's client for the present session. A ticket that
// was refused is renewed once.
func (c *client) withSession(ctx context.Context, do func(*proxmox.Client) error, more ...proxmox.Option) error {
	api, session, err := c.api(ctx, nil, more)
	if err != nil {
		return err
	}

	err = do(api)
	if session == nil || !refused(err) {
		return err
	}

	api, _, err = c.api(ctx, session, more)
	if err != nil {
		return err
	}

	return do(api)
}

func refused(err error) bool {
	answer, ok := errors.AsType[*APIError](err)

	return ok && answer.Status == http.StatusUnauthorized
}

// api gives the library's client. A client is made per call and never changed, since
// the library's own renewal of tickets is not safe for concurrent calls. stale is a
// session that was refused.
func (c *client) api(ctx context.Context, stale *proxmox.Session, more []proxmox.Option,
) (*proxmox.Client, *proxmox.Session, error) {
	options := append([]proxmox.Option{proxmox.WithHTTPClient(c.http), proxmox.WithUserAgent(userAgent)}, more...)

	switch {
	case c.credentials.TokenID != "":
		options = append(options, proxmox.WithAPIToken(c.credentials.TokenID, c.credentials.TokenSecret))

		return proxmox.NewClient(c.base, options...), nil, nil
	case c.credentials.Username == "":
		return proxmox.NewClient(c.base, options...), nil, nil
	}

	session, err := c.ticket(ctx, stale)
	if err != nil {
		return nil, nil, err
	}

	options = append(options, proxmox.WithSession(session.Ticket, session.CSRFPreventionToken))

	return proxmox.NewClient(c.base, options...), session, nil
}

// ticket gives a session that is neither stale nor due for renewal. Where the old
// ticket is still good, it is renewed by itself; else the password logs in.
func (c *client) ticket(ctx context.Context, stale *proxmox.Session) (*proxmox.Session, error) {
	c.login.Lock()
	defer c.login.Unlock()

	old := c.current()
	if old != nil && old != stale && c.clock.Now().Before(c.renewal()) {
		return old, nil
	}

	if old != nil && old != stale {
		if session, err := c.logIn(ctx, old.Username, old.Ticket); err == nil {
			return session, nil
		}
	}

	return c.logIn(ctx, c.credentials.Username, c.credentials.Password)
}

func (c *client) current() *proxmox.Session {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.session
}

func (c *client) renewal() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.renewAt
}

func (c *client) logIn(ctx context.Context, username, password string) (*proxmox.Session, error) {
	api := proxmox.NewClient(c.base, proxmox.WithHTTPClient(c.http), proxmox.WithUserAgent(userAgent))

	session, err := api.Ticket(ctx, &proxmox.Credentials{Username: username, Password: password})
	if err != nil {
		// Logging in changes nothing: without an answer it is tried again.
		return nil, c.classify("log in to "+c.host(), http.MethodGet, err)
	}

	if session == nil || session.Ticket == "" {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "AuthenticationFailed",
			"log in to %s: %s got no ticket; a second factor is not possible here, "+
				"use an API token", c.host(), username)
	}

	if session.Username == "" {
		session.Username = username
	}

	c.mu.Lock()
	c.session, c.renewAt = session, c.clock.Now().Add(ticketLife)
	c.mu.Unlock()

	return session, nil
}

// untrusted tells whether an error is about the server's certificate.
func untrusted(err error) bool {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, pin := errors.AsType[*hypervisor.FingerprintError](err)

	return certificate || pin
}
