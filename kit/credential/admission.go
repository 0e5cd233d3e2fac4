// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// maxStatusBytes limits how much of a refusal is read.
const maxStatusBytes = 64 << 10

// unreadyTexts returns parts of the messages with which an API server refuses a write because it has not read yet what it needs to
// admit the object: after its start, or after an admission policy or the CRD of its parameters was applied
// (k8s.io/apiserver, pkg/admission/plugin: namespace/lifecycle, webhook/generic, policy/generic).
func unreadyTexts() []string {
	return []string{
		"not yet ready to handle request",
		"not yet synced to use for admission",
		"failed to find resource referenced by paramKind",
	}
}

// RetryUnreadyAdmission makes the clients of a configuration repeat a write that an API server refuses because it has not
// read yet what it needs to admit the object. The server says that the object is forbidden or invalid, although it is
// neither. The clients get the status 503 with the server's message instead. client-go repeats the request up to ten times,
// once a second. Then the error is one of an unavailable server, which callers retry.
func RetryUnreadyAdmission(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err != nil || response.StatusCode != http.StatusForbidden && response.StatusCode != http.StatusUnprocessableEntity {
				return response, err
			}

			return convertUnready(response)
		})
	})
}

// convertUnready returns a response with the status 503 for a refusal with one of the unreadyTexts, and the response as it
// is otherwise.
func convertUnready(response *http.Response) (*http.Response, error) {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxStatusBytes))
	if err != nil {
		return nil, fmt.Errorf("read response: %w", err)
	}

	found := ""

	for _, unready := range unreadyTexts() {
		if bytes.Contains(text, []byte(unready)) {
			found = unready
		}
	}

	if found == "" {
		response.Body = readCloser{io.MultiReader(bytes.NewReader(text), response.Body), response.Body}

		return response, nil
	}

	_ = response.Body.Close()

	var refusal metav1.Status

	_ = json.Unmarshal(text, &refusal) // it may be in protobuf

	status, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonServiceUnavailable, Code: http.StatusServiceUnavailable,
		Message: "the API server cannot admit the object yet: " + cmp.Or(refusal.Message, found),
	})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}

	out := *response
	out.StatusCode, out.Status = http.StatusServiceUnavailable, "503 Service Unavailable"
	out.Header = response.Header.Clone()
	out.Header.Set("Retry-After", "1")
	out.Header.Set("Content-Type", "application/json")
	out.Header.Del("Content-Length")
	out.ContentLength, out.Body = int64(len(status)), io.NopCloser(bytes.NewReader(status))

	return &out, nil
}

// readCloser reads from one reader and closes another one.
type readCloser struct {
	io.Reader
	io.Closer
}
