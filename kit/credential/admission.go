// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// maxStatusBytes limits how much of a refusal is read.
const maxStatusBytes = 64 << 10

// unreadyPattern matches the messages with which an API server refuses a write because it has not read yet what it needs to
// admit the object: after its start, or after an admission policy or the CRD of its parameters was applied
// (k8s.io/apiserver, pkg/admission/plugin: namespace/lifecycle, webhook/generic, policy/generic, policy/validating). It matches
// only whole messages, because others quote the invalid value, such as the name that a user gave to a job.
var unreadyPattern = regexp.MustCompile(` is forbidden: not yet ready to handle request$` +
	`|failed to configure (policy|binding): paramKind kind .* not yet synced to use for admission$` +
	`|failed to configure (policy|binding): failed to find resource referenced by paramKind: '[^']*'$`)

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

// convertUnready replaces a refusal because the API server's admission is not ready yet (unreadyPattern) by a response with
// the status 503, so that the client retries. It returns other responses unchanged.
func convertUnready(response *http.Response) (*http.Response, error) {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxStatusBytes))
	if err != nil {
		return nil, fmt.Errorf("read response: %w", err)
	}

	refusal := decodeStatus(text)
	if !unreadyPattern.MatchString(refusal.Message) {
		response.Body = readCloser{io.MultiReader(bytes.NewReader(text), response.Body), response.Body}

		return response, nil
	}

	_ = response.Body.Close()

	status, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonServiceUnavailable, Code: http.StatusServiceUnavailable,
		Message: "the API server cannot admit the object yet: " + refusal.Message,
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

// protobufPrefix begins each body in the API server's protobuf format, which clients of Kubernetes' own kinds use.
const protobufPrefix = "k8s\x00"

// decodeStatus returns the status in the body of a refusal, and an empty one if the body has none.
func decodeStatus(body []byte) metav1.Status {
	var (
		out      metav1.Status
		envelope runtime.Unknown
		err      error
	)

	if content, isProtobuf := bytes.CutPrefix(body, []byte(protobufPrefix)); isProtobuf {
		if err = envelope.Unmarshal(content); err == nil {
			err = out.Unmarshal(envelope.Raw)
		}
	} else {
		err = json.Unmarshal(body, &out)
	}

	if err != nil {
		return metav1.Status{} // another server, such as a proxy, has responded
	}

	return out
}

// readCloser reads from one reader and closes another one.
type readCloser struct {
	io.Reader
	io.Closer
}
