// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/kubevirt"
)

// The provider limits how much it reads of a response of another cluster, and never sends the credentials to
// another server.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()

	const pieces = 512 // MiB

	var otherRequests, written atomic.Int64

	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { otherRequests.Add(1) }))
	t.Cleanup(other.Close)

	for name, handler := range map[string]http.HandlerFunc{
		"an endless response": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"gitVersion":"`)

			for piece := []byte(strings.Repeat("x", 1<<20)); ; written.Add(1) {
				if _, err := w.Write(piece); err != nil || written.Load() > pieces {
					return
				}
			}
		},
		"a large header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
			fmt.Fprint(w, `{"gitVersion":"v1.30.0"}`)
		},
		"a redirect to another server": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httptest.NewTLSServer(handler)
			t.Cleanup(server.Close)

			text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
				users: [{name: a, user: {token: s3cret}}], clusters: [{name: a, cluster: {server: %q,
				certificate-authority-data: %s}}]}`, server.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))

			p, err := kubevirt.New(hypervisor.Config{Name: "lab", Kubeconfig: []byte(text)}, hypervisor.Options{OperatorUID: operatorUID}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()

			_, err = p.Check(t.Context())
			if err == nil || name == "a large header" && !strings.Contains(err.Error(), "header") {
				t.Errorf("check = %v, want an error", err)
			}
		})
	}

	t.Cleanup(func() {
		if n := otherRequests.Load(); n > 0 || written.Load() > pieces {
			t.Errorf("%d requests went to another server, the provider read %d MiB", n, written.Load())
		}
	})
}
