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

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// Endpoint is where the API is unless a Config says otherwise.
	Endpoint = "https://api.scaleway.com"
	// defaultTimeout of one call, all tries together.
	defaultTimeout = 30 * time.Second
	pageSize       = 100
)

var (
	accessKeyForm = regexp.MustCompile(`^SCW[A-Z0-9]{17}$`)
	uuidForm      = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	zoneForm      = regexp.MustCompile(`^[a-z]{2}-[a-z]{3}-[1-9]$`)
)

// Config says whose servers, and where.
type Config struct {
	// AccessKey and SecretKey of an API key with the permission sets
	// AppleSiliconFullAccess and SSHKeysFullAccess in the project.
	AccessKey string
	SecretKey log.Secret
	// ProjectID is a UUID. Servers of other projects are not seen.
	ProjectID string
	// Zone such as fr-par-1.
	Zone string
	// Endpoint without a path. Default: Scaleway's.
	Endpoint string
	// Network is the transport of the connections. Required.
	Network http.RoundTripper
	// Transport wraps it, such as for metrics. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Timeout of one call, all its tries together. Default: 30 s.
	Timeout time.Duration
	// Clock paces tries. Default: the real one.
	Clock clock.Clock
}

// Client of one project in one zone.
type Client struct {
	macs    *applesilicon.API
	keys    *iam.API
	project string
	zone    scw.Zone
	redact  log.Redactor
	timeout time.Duration
}

// New gives a client. It calls nobody. Everything that can't be right is told at once, and
// without its secret.
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

	if err := cfg.check(); err != nil {
		return nil, &Error{Kind: Denied, Message: "use Scaleway's API: " + err.Error()}
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
			Transport: withoutMetadata(retry.Transport(transport, cfg.Clock, repeatable)),
			Timeout:   cfg.Timeout,
			// The key goes to the configured host and nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}))
	if err != nil {
		return nil, &Error{Kind: Denied, Message: "use Scaleway's API: the SDK refuses these settings"}
	}

	return &Client{
		macs: applesilicon.NewAPI(client), keys: iam.NewAPI(client), project: cfg.ProjectID,
		zone: scw.Zone(cfg.Zone), redact: log.NewRedactor(nil, cfg.SecretKey.Reveal()), timeout: cfg.Timeout,
	}, nil
}

// withoutMetadata answers GET /metadata itself, with 404. The SDK asks for it after each call,
// outside the caller's context and without a lock around what it keeps of it, to write names
// into its values that nobody here uses.
func withoutMetadata(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path != "/metadata" {
			return next.RoundTrip(r)
		}

		return &http.Response{
			Status: "404 Not Found", StatusCode: http.StatusNotFound, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{}, Body: http.NoBody, Request: r,
		}, nil
	})
}

// check does what the SDK would, whose words repeat the secret key.
func (cfg Config) check() error {
	var errs []error

	if !accessKeyForm.MatchString(cfg.AccessKey) {
		errs = append(errs, errors.New("the access key must be SCW and 17 capital letters or digits"))
	}

	if !uuidForm.MatchString(cfg.SecretKey.Reveal()) {
		errs = append(errs, errors.New("the secret key must be a UUID"))
	}

	if !uuidForm.MatchString(cfg.ProjectID) {
		errs = append(errs, fmt.Errorf("project %q: must be a UUID", cfg.ProjectID))
	}

	if !zoneForm.MatchString(cfg.Zone) {
		errs = append(errs, fmt.Errorf("zone %q: must be one such as fr-par-1", cfg.Zone))
	}

	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.User != nil || u.Path != "" || !httpbound.Safe(u) {
		errs = append(errs, errors.New("the endpoint must be a URL such as "+Endpoint+", without path and user"))
	}

	return errors.Join(errs...)
}

// repeatable says that a call has the same outcome however often it is made: all but
// orders and restarts.
func repeatable(r *http.Request) bool { return r.Method != http.MethodPost }

// Operation names a call for metrics, without ids.
func Operation(r *http.Request) string {
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	for i, segment := range segments {
		if uuidForm.MatchString(segment) {
			segments[i] = "ID"
		}
	}

	return r.Method + " /" + strings.Join(segments, "/")
}

// call bounds a call in time.
func (c *Client) call(ctx context.Context, verb string, do func(scw.RequestOption) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	return c.failure(verb, do(scw.WithContext(ctx)))
}
