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

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	publicEndpoint = "https://agent.buildkite.com/v3"
	userAgent      = "hyperfleet"
	defaultTimeout = 30 * time.Second
)

// Config makes the provider of one queue.
type Config struct {
	// Organization is the slug of the organization.
	Organization string
	// Queue is the key of the queue.
	Queue string
	// Stack is the key of the stack: letters, digits, _ and -, at most 80. Two that use
	// one key share its reservations.
	Stack string
	// Metadata of the stack, for people: at most 100 keys of 64 characters, with values of
	// 256.
	Metadata map[string]string
	// Endpoint of the agent API. Default: https://agent.buildkite.com/v3.
	Endpoint string
	// Token is the agent token of the cluster.
	Token string
	// Timeout of one call.
	Timeout time.Duration
	// Transport wraps the HTTP transport, for metrics and traces. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Network is the transport below that. Nil: httpbound.Shared.
	Network http.RoundTripper
}

// New makes the provider of one queue. It makes no call. A configuration that cannot work
// is an error of kind Rejected.
func New(config Config) (workload.Provider, error) {
	return newProvider(config, clock.RealClock{})
}

func newProvider(config Config, clk clock.Clock) (*provider, error) {
	endpoint, _, err := readEndpoint(config.Endpoint)

	switch {
	case err != nil:
		return nil, err
	case strings.TrimSpace(config.Token) == "":
		return nil, workload.Reject(ReasonCredentials,
			"no credentials: the Secret of bootstrap.config.buildkite.credentials holds no agent token")
	case config.Organization == "" || config.Queue == "":
		return nil, workload.Reject(ReasonConfig, "no organization or queue is set: set them in workload.config.buildkite")
	case !stackPattern().MatchString(config.Stack):
		return nil, workload.Reject(ReasonConfig, fmt.Sprintf("stack key %q is not of 1 to 80 letters, digits, _ and -", config.Stack))
	}

	out := &provider{
		client: newClient(config, endpoint, clk), clock: clk, endpoint: endpoint,
		organization: config.Organization, queue: config.Queue, stack: config.Stack, metadata: config.Metadata,
		asking:  make(chan struct{}, 1),
		runners: map[string]string{}, states: map[string]seenState{},
	}
	out.reservations, out.tokens = newBatcher(out.reserveAll), newBatcher(out.acquireAll)

	return out, nil
}

// readEndpoint gives the agent API's endpoint without a slash at its end.
func readEndpoint(text string) (string, *url.URL, error) {
	endpoint := strings.TrimRight(cmp.Or(text, publicEndpoint), "/")

	base, err := url.Parse(endpoint)

	switch {
	case err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" || base.User != nil:
		return "", nil, workload.Reject(ReasonConfig,
			"bootstrap.config.buildkite.endpoint is not a URL without credentials: use one such as "+publicEndpoint)
	case !httpbound.Safe(base):
		return "", nil, workload.Reject(ReasonConfig,
			"bootstrap.config.buildkite.endpoint is plain http, and the agent token is sent there: use https")
	}

	return endpoint, base, nil
}

func stackPattern() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`) }

// stackKey gives the key of a template's stack for a queue. It is the same after a
// restart, so that the reservations are still ours, and another one for an operator in
// another cluster, whose templates have other uids.
func stackKey(config workload.Config) string {
	owner := config.Template.Namespace + "/" + config.Template.Name
	if uid := string(config.Template.UID); uid != "" {
		owner = uid
	}

	runner := config.Runner
	sum := sha256.Sum256([]byte(strings.Join([]string{runner.Scope.Organization, runner.Queue, owner}, "\x00")))
	name := regexp.MustCompile(`[^A-Za-z0-9_-]+`).ReplaceAllString(runner.Queue, "-")

	const room = 40

	return "hyperfleet-" + name[:min(len(name), room)] + "-" + hex.EncodeToString(sum[:8])
}
