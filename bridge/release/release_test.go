// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/bridge/credentials"
	"github.com/hyperfleet/hyperfleet/bridge/release"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/sim/registry"
	"github.com/hyperfleet/hyperfleet/sim/registry/registrytest"
)

const repository = "openshift-release-dev/ocp-release"

func TestParse(t *testing.T) {
	t.Parallel()

	digest := "sha256:" + strings.Repeat("0a", 32)
	cases := map[string]struct {
		image string
		want  release.Reference
		minor string
		bad   string
	}{
		"tag": {
			image: "quay.io/openshift-release-dev/ocp-release:4.15.0-x86_64", minor: "4.15",
			want: release.Reference{Registry: "quay.io", Repository: repository, Tag: "4.15.0-x86_64"},
		},
		"digest":          {image: "quay.io/a/b@" + digest, want: release.Reference{Registry: "quay.io", Repository: "a/b", Digest: digest}},
		"tag and digest":  {image: "quay.io/a:4.9.1@" + digest, want: release.Reference{Registry: "quay.io", Repository: "a", Tag: "4.9.1", Digest: digest}, minor: "4.9"},
		"port":            {image: "127.0.0.1:5000/a:v4.15.0", want: release.Reference{Registry: "127.0.0.1:5000", Repository: "a", Tag: "v4.15.0"}, minor: "4.15"},
		"port, no tag":    {image: "127.0.0.1:5000/a", want: release.Reference{Registry: "127.0.0.1:5000", Repository: "a", Tag: "latest"}},
		"hub":             {image: "openshift/release:nightly", want: release.Reference{Registry: "docker.io", Repository: "openshift/release", Tag: "nightly"}},
		"hub's own":       {image: "alpine:3.20", want: release.Reference{Registry: "docker.io", Repository: "library/alpine", Tag: "3.20"}},
		"candidate":       {image: "quay.io/a:4.16.0-rc.1-multi", want: release.Reference{Registry: "quay.io", Repository: "a", Tag: "4.16.0-rc.1-multi"}, minor: "4.16"},
		"short digest":    {image: "quay.io/a@sha256:0a", bad: "the digest must be"},
		"other digest":    {image: "quay.io/a@md5:" + strings.Repeat("0", 32), bad: "the digest must be"},
		"empty tag":       {image: "quay.io/a:", bad: "the tag must be"},
		"long tag":        {image: "quay.io/a:" + strings.Repeat("a", 129), bad: "the tag must be"},
		"two slashes":     {image: "quay.io/a//b:1", bad: "the repository must be"},
		"upper case":      {image: "quay.io/A:1", bad: "the repository must be"},
		"no repository":   {image: "quay.io/", bad: "the repository must be"},
		"path upwards":    {image: "quay.io/../a:1", bad: "the repository must be"},
		"registry of -":   {image: "-.io/a:1", bad: "the registry must be a host name"},
		"registry's port": {image: "quay.io:port/a:1", bad: "the registry must be a host name"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := release.Parse(tc.image)
			if tc.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tc.bad) {
					t.Errorf("got %v", err)
				}

				return
			}

			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v, (-want +got):\n%s", err, diff)
			}

			if minor, _ := got.MinorVersion(); minor != tc.minor {
				t.Errorf("minor %q, want %q", minor, tc.minor)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, image := range []string{"quay.io/a/b:4.15.0-x86_64", "a@sha256:" + strings.Repeat("0", 64), "::", "@", "/"} {
		f.Add(image)
	}

	f.Fuzz(func(t *testing.T, image string) {
		ref, err := release.Parse(image)
		if err == nil && (strings.ContainsAny(ref.Host()+ref.Repository+ref.ManifestReference(), " ?#%@\\") || strings.Contains(ref.Repository, "..")) {
			t.Errorf("%q is %+v", image, ref)
		}

		_, _ = ref.MinorVersion()
	})
}

func transport(t *testing.T, pem []byte) http.RoundTripper {
	t.Helper()

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)

	out := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	t.Cleanup(out.CloseIdleConnections)

	return out
}

func login(t *testing.T, text string) credentials.DockerConfig {
	t.Helper()

	logins, err := credentials.ParseDockerConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}

	return logins
}

func TestCheck(t *testing.T) {
	t.Parallel()

	const elsewhere = `{"auths": {"quay.io": {"auth": "dXNlcjpwYXNz"}}}`

	users := map[string]string{"user": "password"}
	cases := map[string]struct {
		options registry.Options
		fault   *registry.Fault
		tag     string
		login   string // empty: the good one
		reason  string
		class   errclass.Class
		parts   []string
	}{
		"by tag":                {options: registry.Options{Users: users}},
		"with the password":     {options: registry.Options{Users: users, Basic: true}},
		"open":                  {login: elsewhere},
		"not there":             {options: registry.Options{Users: users}, tag: "4.16.0", reason: "ImageNotFound", class: errclass.Permanent, parts: []string{":4.16.0 does not exist in its registry"}},
		"wrong password":        {options: registry.Options{Users: users}, login: "wrong", reason: "ImageUnauthorized", class: errclass.Permanent, parts: []string{"does not allow"}},
		"wrong password, basic": {options: registry.Options{Users: users, Basic: true}, login: "wrong", reason: "ImageUnauthorized", class: errclass.Permanent},
		"no login":              {options: registry.Options{Users: users}, login: elsewhere, reason: "ImageUnauthorized", class: errclass.Permanent, parts: []string{"has no login for"}},
		"no login, basic":       {options: registry.Options{Users: users, Basic: true}, login: elsewhere, reason: "ImageUnauthorized", class: errclass.Permanent, parts: []string{"has no login for"}},
		"forbidden":             {fault: &registry.Fault{Status: 403}, reason: "ImageUnauthorized", class: errclass.Permanent},
		"one failure":           {fault: &registry.Fault{Status: 503, Count: 1}},
		"down":                  {fault: &registry.Fault{Status: 503}, reason: "RegistryUnreachable", class: errclass.Transient, parts: []string{"status 503"}},
		"too many requests":     {fault: &registry.Fault{Status: 429}, reason: "RegistryUnreachable", class: errclass.Transient},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := registrytest.New(t, tc.options)
			server.Push(repository, "4.15.0")
			server.SetFault(tc.fault)

			text := tc.login
			switch text {
			case "":
				text = server.PullSecret("user", "password")
			case "wrong":
				text = server.PullSecret("user", "top-secret")
			}

			tag := "4.15.0"
			if tc.tag != "" {
				tag = tc.tag
			}

			err := release.New(transport(t, server.CA), clock.RealClock{}).
				Check(t.Context(), server.Host+"/"+repository+":"+tag, login(t, text), "1")
			if tc.reason == "" {
				if err != nil {
					t.Error(err)
				}

				return
			}

			if errclass.ReasonOf(err, "") != tc.reason || errclass.ClassOf(err) != tc.class {
				t.Errorf("got %s %s: %v", errclass.ClassOf(err), errclass.ReasonOf(err, ""), err)
			}

			for _, part := range tc.parts {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("want %q in: %v", part, err)
				}
			}

			if strings.Contains(err.Error(), "top-secret") {
				t.Errorf("the error contains the password: %v", err)
			}
		})
	}
}

// TestResponsesAreCached checks that results are cached by the image and the Secret's version, and that
// concurrent checks of one image share one request.
func TestResponsesAreCached(t *testing.T) {
	t.Parallel()

	server := registrytest.New(t, registry.Options{Users: map[string]string{"user": "password"}})
	image := server.Host + "/" + repository + "@" + server.Push(repository, "")
	checker := release.New(transport(t, server.CA), clock.RealClock{})
	logins := login(t, server.PullSecret("user", "password"))

	heads := func() int {
		n := 0

		for call, count := range server.Calls() {
			if strings.HasPrefix(call, http.MethodHead) {
				n += count
			}
		}

		return n
	}
	request := func(version string) {
		if err := checker.Check(t.Context(), image, logins, version); err != nil {
			t.Error(err)
		}
	}

	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { request("1") })
	}

	all.Wait()

	first := heads()

	request("1")

	if got := heads(); got != first {
		t.Errorf("%d requests, then %d", first, got)
	}

	request("2")

	if got := heads(); got != first+2 {
		t.Errorf("%d requests, then %d after the Secret has changed", first, got)
	}
}

// TestInvalidRegistryResponses checks that a server that does not behave as a registry gets no password and
// that requests to it end.
func TestInvalidRegistryResponses(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ header, body, want string }{
		"plain http":  {header: `Bearer realm="http://127.0.0.1:1/token"`, want: "does not use https"},
		"no realm":    {header: `Bearer service="a"`, want: "does not use https"},
		"negotiation": {header: "Negotiate", want: "neither Bearer nor Basic"},
		"nothing":     {want: "neither Bearer nor Basic"},
		"no token":    {header: `Bearer realm="https://HOST/token",scope="a\"b"`, body: "{}", want: "has no token"},
		"words":       {header: `Bearer realm="https://HOST/token"`, body: "top-secret", want: "is not valid"},
		"two lines":   {header: `Bearer realm="https://HOST/token"`, body: `{"token": "a\r\nb: c"}`, want: "has no token"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			served := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/token" {
					_, _ = w.Write([]byte(tc.body))

					return
				}

				if tc.header != "" {
					w.Header().Set("WWW-Authenticate", strings.ReplaceAll(tc.header, "HOST", r.Host))
				}

				w.WriteHeader(http.StatusUnauthorized)
			}))
			t.Cleanup(served.Close)

			host := strings.TrimPrefix(served.URL, "https://")
			logins := credentials.DockerConfig{host: {User: "user", Password: "top-secret"}}

			err := release.New(served.Client().Transport, clock.RealClock{}).Check(t.Context(), host+"/a:1.2.3", logins, "1")
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "top-secret") {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestSlowRegistryIsGivenUp(t *testing.T) {
	t.Parallel()

	server := registrytest.New(t, registry.Options{})
	server.SetFault(&registry.Fault{Delay: time.Hour})

	ctx, cancel := context.WithCancel(t.Context())
	checker := release.New(transport(t, server.CA), clock.RealClock{})

	go cancel()

	err := checker.Check(ctx, server.Host+"/a:1.2.3", nil, "1")
	if !errors.Is(err, context.Canceled) || errclass.ReasonOf(err, "") != "RegistryUnreachable" {
		t.Errorf("got %v", err)
	}
}
