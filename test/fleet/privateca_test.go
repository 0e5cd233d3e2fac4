// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestJobOfPlatformWithPrivateCA checks that all of the operator's calls to a CI platform use the transport that trusts
// the CA of the configuration: a job runs of a platform whose certificate no other CA verifies. The runner itself calls the
// platform without TLS.
func TestJobOfPlatformWithPrivateCA(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	target, err := url.Parse(f.GitHub.URL)
	must.Do(t, err)

	server := httptest.NewTLSServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	t.Cleanup(server.Close)

	f.Runners.PlatformURLs = []string{server.URL}
	f.PlatformNetwork = server.Client().Transport

	template := f.NewTemplate()
	template.Spec.Bootstrap.Config.GitHub.APIURL = server.URL
	createAndStart(f, template, f.NewPool(1))
	queueJobs(f, 1)
	f.EventuallyJobsDone(1)
	f.EventuallyClean()
}
