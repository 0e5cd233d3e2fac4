// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/drain"
)

// newKubeconfig returns a kubeconfig with a token and with one additional field of the cluster.
func newKubeconfig(server, key, value string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"a",`+
		`"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],"users":[{"name":"a","user":{"token":"t"}}],`+
		`"clusters":[{"name":"a","cluster":{"server":%q,%q:%q}}]}`, server, key, value)
}

// A tenant chooses the server and can read the resulting errors. Therefore errors do not quote responses,
// the size of responses is limited, and redirects are not followed.
func TestErrorsDoNotQuoteTenantServers(t *testing.T) {
	t.Parallel()

	const secret = "s3cr3t"

	var (
		elsewhere atomic.Int64
		// read is true if an endless response was read completely.
		read atomic.Bool
	)

	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)

	for name, answer := range map[string]http.HandlerFunc{
		"a status": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"reason":%q,"code":403}`, secret, secret)
		},
		"a text": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusInternalServerError) },
		"another object": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"kind":%q,"apiVersion":"v1","metadata":{"name":%q}}`, secret, secret)
		},
		"no JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, secret)
		},
		"an endless response": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"`+secret)

			for range 64 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}

			read.Store(true)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/"+secret, http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httptest.NewTLSServer(answer)
			t.Cleanup(server.Close)

			ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))

			cluster, err := drain.Connect(newKubeconfig(server.URL, "certificate-authority-data", ca))
			if err != nil {
				t.Fatal(err)
			}
			defer cluster.Close()

			progress, err := cluster.Drain(t.Context(), "node", false)
			if err == nil || strings.Contains(err.Error(), secret) || len(progress.RemainingPods) > 0 {
				t.Errorf("%+v, error %v", progress, err)
			}
		})
	}

	t.Cleanup(func() {
		if n := elsewhere.Load(); n > 0 || read.Load() {
			t.Errorf("%d redirected calls; 64 MiB were read: %t", n, read.Load())
		}
	})
}

// A tenant cannot configure a proxy, because the proxy could be any server that only the operator can reach.
func TestProxyOfATenantIsNotCalled(t *testing.T) {
	t.Parallel()

	var called atomic.Int64

	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Add(1) }))
	t.Cleanup(proxy.Close)

	cluster, err := drain.Connect(newKubeconfig("https://192.0.2.1:6443", "proxy-url", proxy.URL))
	if err == nil {
		_, err = cluster.Drain(t.Context(), "node", false)

		cluster.Close()
	}

	if err == nil || !strings.Contains(err.Error(), "it names a proxy: remove proxy-url") || called.Load() > 0 {
		t.Errorf("the proxy was called %d times, error %v", called.Load(), err)
	}
}
