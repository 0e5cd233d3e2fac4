// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// transports put the calls to other systems into the metrics, and keep those that change
// something to the leader.
type transports struct {
	calls *metrics.Calls
	// leading refuses what changes something once another may lead.
	leading func(http.RoundTripper) http.RoundTripper
}

func newTransports(registerer prometheus.Registerer, leading func(http.RoundTripper) http.RoundTripper) (*transports, error) {
	calls, err := metrics.NewCalls(registerer, nil)
	if err != nil {
		return nil, fmt.Errorf("set up metrics of external calls: %w", err)
	}

	return &transports{calls: calls, leading: leading}, nil
}

// hypervisor wraps the transport of calls to Proxmox VE.
func (t *transports) hypervisor(next http.RoundTripper) http.RoundTripper {
	return t.calls.Transport("proxmox", proxmox.Operation, t.leading(next))
}

// platform wraps the transport of calls to a CI platform, by its workload type.
func (t *transports) platform(kind string, next http.RoundTripper) http.RoundTripper {
	next = t.leading(next)

	switch kind {
	case v1alpha1.WorkloadGitHubActions:
		return t.calls.Transport("github", operation, next)
	case v1alpha1.WorkloadGitLabCI:
		return t.calls.Transport("gitlab", gitlab.Operation, next)
	default:
		return t.calls.Transport(kind, plainOperation, next)
	}
}

// registry wraps the transport of calls to image registries.
func (t *transports) registry(next http.RoundTripper) http.RoundTripper {
	return t.calls.Transport("registry", nil, next)
}

// hosted wraps the transport of calls to hosted clusters.
func (t *transports) hosted(next http.RoundTripper) http.RoundTripper {
	return t.calls.Transport("hosted-cluster", nil, t.leading(next))
}

// identity counts a call to the SPIRE server.
func (t *transports) identity(operation string, took time.Duration, err error) {
	t.calls.Observe("spire", operation, took, err)
}

// word matches the parts of a path that are words of Buildkite's API and no names.
var word = regexp.MustCompile(`^(v[0-9]+|jobs|stacks|register|scheduled-jobs|batch-reserve|get-states|finish|notifications|` +
	`job-acquisition-tokens|metrics)$`)

// plainOperation names a call by its method and the words of its path.
func plainOperation(r *http.Request) string {
	parts := strings.Split(r.URL.EscapedPath(), "/")
	for i, part := range parts {
		if part != "" && !word.MatchString(part) {
			parts[i] = "{}"
		}
	}

	return r.Method + " " + strings.Join(parts, "/")
}

// names matches the parts of a path of GitHub's that name objects.
var names = regexp.MustCompile(
	`/(orgs|enterprises|runners|jobs|runs|installations|hooks|deliveries|runnerscalesets|sessions|message)/[^/]+`)

// repository matches the two that name a repository.
var repository = regexp.MustCompile(`/repos/[^/]+/[^/]+`)

// service matches what is before the calls of GitHub's Actions service: whose it is.
var service = regexp.MustCompile(`^.*/_apis/`)

// operation names a call by its method and its path without the names of objects.
func operation(r *http.Request) string {
	path := repository.ReplaceAllString(service.ReplaceAllString(r.URL.Path, "/_apis/"), "/repos/{owner}/{repo}")
	path = names.ReplaceAllStringFunc(path, func(match string) string {
		kind, last, _ := strings.Cut(match[1:], "/")
		if kind == "runners" && (last == "generate-jitconfig" || last == "registration-token" || last == "remove-token") {
			return match
		}

		return "/" + kind + "/{}"
	})

	return r.Method + " " + path
}
