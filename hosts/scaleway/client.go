// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	applesilicon "github.com/scaleway/scaleway-sdk-go/api/applesilicon/v1alpha1"
	iam "github.com/scaleway/scaleway-sdk-go/api/iam/v1alpha1"
	"github.com/scaleway/scaleway-sdk-go/scw"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// Endpoint is the default URL of the API.
	Endpoint = "https://api.scaleway.com"
	// defaultTimeout limits one call, including its retries.
	defaultTimeout = 30 * time.Second
	pageSize       = 100
)

var (
	accessKeyPattern = regexp.MustCompile(`^SCW[A-Z0-9]{17}$`)
	uuidPattern      = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	zonePattern      = regexp.MustCompile(`^[a-z]{2}-[a-z]{3}-[1-9]$`)
)

// Config selects the project and zone, and holds the credentials.
type Config struct {
	// AccessKey and SecretKey form an API key with the permission sets AppleSiliconFullAccess and
	// SSHKeysFullAccess in the project.
	AccessKey string
	SecretKey log.Secret
	// ProjectID is a UUID. The client does not see servers of other projects.
	ProjectID string
	// Zone is a zone such as fr-par-1.
	Zone string
	// Endpoint is the URL of the API without a path. Default: Scaleway's.
	Endpoint string
	// Network is the transport of the connections. Required.
	Network http.RoundTripper
	// Transport wraps Network, for example for metrics. It may be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Timeout limits one call, including its retries. Default: 30 s.
	Timeout time.Duration
	// Clock times the retries. Default: the real clock.
	Clock clock.Clock
}

// Client is a client for one project in one zone.
type Client struct {
	macs    *applesilicon.API
	keys    *iam.API
	project string
	zone    scw.Zone
	redact  log.Redactor
	timeout time.Duration
}

// New returns a client and validates its configuration. It makes no API call. Its errors do not
// contain the secret key.
func New(cfg Config) (*Client, error) {
	if cfg.Endpoint == "" {
		cfg.Endpoint = Endpoint
	}

	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}

	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}

	if err := cfg.validate(); err != nil {
		return nil, &Error{Kind: Denied, Message: "configure Scaleway client: " + err.Error()}
	}

	transport := cfg.Network
	if cfg.Transport != nil {
		transport = cfg.Transport(transport)
	}

	client, err := scw.NewClient(
		scw.WithAuth(cfg.AccessKey, cfg.SecretKey.Reveal()),
		scw.WithAPIURL(cfg.Endpoint),
		scw.WithDefaultProjectID(cfg.ProjectID),
		scw.WithUserAgent("hyperfleet"),
		scw.WithHTTPClient(&http.Client{
			Transport: stubMetadata(retry.NewTransport(transport, cfg.Clock, isIdempotent)),
			Timeout:   cfg.Timeout,
			// The key must only be sent to the configured host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}))
	if err != nil {
		return nil, &Error{Kind: Denied, Message: "configure Scaleway client: the SDK rejects the settings"}
	}

	return &Client{
		macs: applesilicon.NewAPI(client), keys: iam.NewAPI(client), project: cfg.ProjectID,
		zone: scw.Zone(cfg.Zone), redact: log.NewRedactor(nil, cfg.SecretKey.Reveal()), timeout: cfg.Timeout,
	}, nil
}

// stubMetadata responds to GET /metadata itself, with 404. The SDK sends this request after each
// call, outside the caller's context, and caches the response without a lock. It uses the response
// only to add names to its values, which this package does not need.
func stubMetadata(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path != "/metadata" {
			return next.RoundTrip(r)
		}

		return &http.Response{
			Status: "404 Not Found", StatusCode: http.StatusNotFound, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{}, Body: http.NoBody, Request: r,
		}, nil
	})
}

// validate validates the settings before the SDK does, because the SDK's errors contain the secret
// key.
func (cfg Config) validate() error {
	var errs []error

	if !accessKeyPattern.MatchString(cfg.AccessKey) {
		errs = append(errs, errors.New("the access key must be SCW followed by 17 capital letters or digits"))
	}

	if !uuidPattern.MatchString(cfg.SecretKey.Reveal()) {
		errs = append(errs, errors.New("the secret key must be a UUID"))
	}

	if !uuidPattern.MatchString(cfg.ProjectID) {
		errs = append(errs, fmt.Errorf("project %q: must be a UUID", cfg.ProjectID))
	}

	if !zonePattern.MatchString(cfg.Zone) {
		errs = append(errs, fmt.Errorf("zone %q: must be a zone such as fr-par-1", cfg.Zone))
	}

	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.User != nil || u.Path != "" || !bounds.IsSecureURL(u) {
		errs = append(errs, errors.New("the endpoint must be a URL such as "+Endpoint+", without path and user"))
	}

	return errors.Join(errs...)
}

// isIdempotent returns true if the request may be retried. All requests are idempotent except POST,
// which orders and restarts use.
func isIdempotent(r *http.Request) bool { return r.Method != http.MethodPost }

// Operation returns the name of a call for metrics, with IDs replaced.
func Operation(r *http.Request) string {
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	for i, segment := range segments {
		if uuidPattern.MatchString(segment) {
			segments[i] = "ID"
		}
	}

	return r.Method + " /" + strings.Join(segments, "/")
}

// call sends a request with the client's timeout and converts its error.
func (c *Client) call(ctx context.Context, operation string, send func(scw.RequestOption) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	return c.newError(operation, send(scw.WithContext(ctx)))
}
