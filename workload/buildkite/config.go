// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	publicEndpoint = "https://agent.buildkite.com/v3"
	userAgent      = "hyperfleet"
	defaultTimeout = 30 * time.Second
)

// Config configures the provider of one queue.
type Config struct {
	// Organization is the slug of the organization.
	Organization string
	// Queue is the key of the queue.
	Queue string
	// Stack is the key of the stack: 1 to 80 letters, digits, _ and -. Two providers that use the
	// same key share its reservations.
	Stack string
	// Metadata of the stack for people: at most 100 keys of 64 characters, with values of 256
	// characters.
	Metadata map[string]string
	// Endpoint of the agent API. It defaults to https://agent.buildkite.com/v3.
	Endpoint string
	// Token is the agent token of the cluster.
	Token string
	// Timeout of one HTTP request. It defaults to 30 s.
	Timeout time.Duration
	// WrapTransport wraps the HTTP transport, for metrics and traces. It may be nil.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// BaseTransport is the innermost HTTP transport. Nil means bounds.SharedTransport.
	BaseTransport http.RoundTripper
}

// New creates the provider of one queue. It makes no calls. For an invalid configuration it returns
// an error of kind Rejected.
func New(config Config) (workload.Provider, error) {
	return newProvider(config, clock.RealClock{})
}

// newProvider validates the configuration and creates a provider. It makes no calls.
func newProvider(config Config, clk clock.Clock) (*provider, error) {
	endpoint, _, err := parseEndpoint(config.Endpoint)

	switch {
	case err != nil:
		return nil, err
	case strings.TrimSpace(config.Token) == "":
		return nil, workload.NewRejected(ReasonCredentials,
			"the Secret of bootstrap.config.buildkite.credentials contains no agent token: put the cluster's agent token there")
	case config.Organization == "" || config.Queue == "":
		return nil, workload.NewRejected(ReasonConfig, "organization or queue is empty: set both in workload.config.buildkite")
	case !stackPattern().MatchString(config.Stack):
		return nil, workload.NewRejected(ReasonConfig,
			fmt.Sprintf("stack key %q must have 1 to 80 letters, digits, _ and -", config.Stack))
	}

	out := &provider{
		client: newClient(config, endpoint, clk), clock: clk, endpoint: endpoint,
		organization: config.Organization, queue: config.Queue, stack: config.Stack, metadata: config.Metadata,
		stateSlot:    make(chan struct{}, 1),
		jobsByRunner: map[string]string{}, states: map[string]observedState{},
	}
	out.reservations, out.tokens = newBatcher(out.reserveBatch), newBatcher(out.acquireTokenBatch)

	return out, nil
}

// parseEndpoint returns the agent API's endpoint without a trailing slash.
func parseEndpoint(text string) (endpoint string, parsed *url.URL, err error) {
	endpoint = strings.TrimRight(cmp.Or(text, publicEndpoint), "/")

	base, err := url.Parse(endpoint)

	switch {
	case err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" || base.User != nil:
		return "", nil, workload.NewRejected(ReasonConfig,
			"bootstrap.config.buildkite.endpoint must be an http(s) URL without credentials, such as "+publicEndpoint)
	case !bounds.IsSecureURL(base):
		return "", nil, workload.NewRejected(ReasonConfig,
			"bootstrap.config.buildkite.endpoint uses plain http, which would expose the agent token: use https")
	}

	return endpoint, base, nil
}

func stackPattern() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`) }

// deriveStackKey returns the key of a template's stack for a queue. The key stays the same after a
// restart, so that the stack keeps its reservations. It differs between clusters, because a
// template has another uid in another cluster.
func deriveStackKey(config workload.Config) string {
	owner := config.Template.Namespace + "/" + config.Template.Name
	if uid := string(config.Template.UID); uid != "" {
		owner = uid
	}

	runner := config.Runner
	digest := sha256.Sum256([]byte(strings.Join([]string{runner.Scope.Organization, runner.Queue, owner}, "\x00")))
	name := regexp.MustCompile(`[^A-Za-z0-9_-]+`).ReplaceAllString(runner.Queue, "-")

	const maxQueueLength = 40

	return "hyperfleet-" + name[:min(len(name), maxQueueLength)] + "-" + hex.EncodeToString(digest[:8])
}
