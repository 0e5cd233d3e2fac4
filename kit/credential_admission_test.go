// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// A refusal because the API server's admission is not ready becomes an outage of the server, which client-go and the callers
// retry. All other responses stay as they are.
func TestUnreadyAdmission(t *testing.T) {
	t.Parallel()

	const (
		unsynced = "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: failed to configure binding: " +
			"paramKind kind `hyperfleet.io/v1alpha1, Kind=HypervisorCluster` not yet synced to use for admission"
		unknown = "ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: " +
			"failed to find resource referenced by paramKind: 'hyperfleet.io/v1alpha1, Kind=HypervisorCluster'"
		starting = `namespaces "a" is forbidden: not yet ready to handle request`
		invalid  = `RunnerJob.hyperfleet.io "gh-1" is invalid: spec.name: Invalid value: ` +
			`"a is forbidden: not yet ready to handle request": must have at most 10 characters`
		duplicate = `RunnerPool.hyperfleet.io "a" is invalid: spec.labels[1]: Duplicate value: ` +
			`"failed to configure policy: paramKind kind x not yet synced to use for admission"`
	)

	for name, tt := range map[string]struct {
		status     int
		message    string
		isProtobuf bool
		want       int
	}{
		"parameters not synced":   {status: 422, message: unsynced, want: 503},
		"parameters not known":    {status: 422, message: unknown, want: 503},
		"policy with a reason":    {status: 403, message: unsynced, want: 503},
		"server starts":           {status: 403, message: starting, want: 503},
		"response in protobuf":    {status: 403, message: starting, isProtobuf: true, want: 503},
		"value of a user":         {status: 422, message: invalid, want: 422},
		"value of a user at end":  {status: 422, message: duplicate, want: 422},
		"value in protobuf":       {status: 422, message: invalid, isProtobuf: true, want: 422},
		"policy denies":           {status: 422, message: "denied request: too large", want: 422},
		"no permission":           {status: 403, message: "cannot create", want: 403},
		"long response":           {status: 422, message: strings.Repeat("x", 1<<20), want: 422},
		"another response":        {status: 200, message: unsynced, want: 200},
		"another kind of refusal": {status: 409, message: unsynced, want: 409},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			refusal := metav1.Status{Message: tt.message}
			body, err := json.Marshal(refusal)
			must.Do(t, err)

			if tt.isProtobuf {
				body = encodeProtobuf(t, &refusal)
			}

			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = w.Write(body)
			}))
			t.Cleanup(server.Close)

			config := &rest.Config{Host: server.URL}
			credential.RetryUnreadyAdmission(config)

			client, err := rest.HTTPClientFor(config)
			must.Do(t, err)

			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, http.NoBody)
			must.Do(t, err)

			response, err := client.Do(request)
			must.Do(t, err)

			defer response.Body.Close()

			got, err := io.ReadAll(response.Body)
			must.Do(t, err)

			if response.StatusCode != tt.want {
				t.Errorf("status %d, want %d", response.StatusCode, tt.want)
			}

			if tt.want != http.StatusServiceUnavailable {
				if !bytes.Equal(got, body) {
					t.Errorf("the body has %d bytes, want the %d of the server", len(got), len(body))
				}

				return
			}

			var status metav1.Status
			must.Do(t, json.Unmarshal(got, &status))

			if status.Reason != metav1.StatusReasonServiceUnavailable || status.Code != http.StatusServiceUnavailable ||
				response.Header.Get("Retry-After") != "1" {
				t.Errorf("status %+v, headers %v", status, response.Header)
			}

			if want := "the API server cannot admit the object yet: "; !strings.HasPrefix(status.Message, want) {
				t.Errorf("the message is %q", status.Message)
			}

			if !strings.HasSuffix(status.Message, tt.message) {
				t.Errorf("the message %q lacks that of the server", status.Message)
			}
		})
	}
}

// encodeProtobuf returns a status in the API server's protobuf format.
func encodeProtobuf(t *testing.T, status *metav1.Status) []byte {
	t.Helper()

	raw, err := status.Marshal()
	must.Do(t, err)

	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Status"}, Raw: raw}
	content, err := envelope.Marshal()
	must.Do(t, err)

	return append([]byte("k8s\x00"), content...)
}
