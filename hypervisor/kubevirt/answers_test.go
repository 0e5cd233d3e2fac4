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

// Whatever another cluster answers, it is not read without end, and its credential goes nowhere else.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()

	const pieces = 512 // MiB

	var elsewhere, written atomic.Int64

	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)

	for name, answer := range map[string]http.HandlerFunc{
		"an answer without end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"gitVersion":"`)

			for piece := []byte(strings.Repeat("x", 1<<20)); ; written.Add(1) {
				if _, err := w.Write(piece); err != nil || written.Load() > pieces {
					return
				}
			}
		},
		"a header without end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
			fmt.Fprint(w, `{"gitVersion":"v1.30.0"}`)
		},
		"a way elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httptest.NewTLSServer(answer)
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
			if err == nil || name == "a header without end" && !strings.Contains(err.Error(), "header") {
				t.Errorf("it is taken: %v", err)
			}
		})
	}

	t.Cleanup(func() {
		if n := elsewhere.Load(); n > 0 || written.Load() > pieces {
			t.Errorf("%d calls went elsewhere, %d MiB were read", n, written.Load())
		}
	})
}
