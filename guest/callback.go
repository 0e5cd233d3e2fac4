// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Timeouts and delays of requests for the credential. The machine is useless without the credential, so it
// retries for longer than the operator is usually unavailable, but no longer than the operator waits for the
// machine.
const (
	fetchTimeout       = 45 * time.Second // of one attempt; the operator needs less
	fetchDeadline      = 10 * time.Minute // of all attempts
	fetchRetryDelay    = time.Second      // after the first attempt; it doubles after each further one
	fetchMaxRetryDelay = 30 * time.Second
)

// fetchCredential requests the credential from the operator and stores it in cfg, where other methods have
// the credential from the cloud-init ISO. It does nothing if the method is not callback.
func (s *Service) fetchCredential(ctx context.Context, cfg *guest.Config) error {
	if cfg.Method != guest.MethodCallback {
		return nil
	}

	callback := *cfg.Callback

	client, err := newOperatorClient("callback", callback.CABundle, fetchTimeout)
	if err != nil {
		return newFailure(guest.ReasonConfigInvalid, "%w", err)
	}

	defer client.CloseIdleConnections()

	credential, err := fetchWithRetry(ctx, s, fetchTarget{
		object: "the credential", reason: guest.ReasonCredentialUnavailable, failure: "the operator returned no credential",
	}, func(ctx context.Context) (guest.Credential, time.Duration, error) {
		bearer, err := s.bearerToken(ctx, callback)
		if err != nil {
			return guest.Credential{}, 0, err
		}

		return requestCredential(ctx, client, callback.URL, bearer)
	})
	if err != nil {
		return err
	}

	cfg.Callback = nil // the code is valid for one credential only

	return s.useCredential(cfg, credential, guest.ReasonConfigInvalid, "credential from the operator")
}

// bearerToken returns the token that authenticates the machine to the operator: the claim code, or a new
// JWT-SVID. A JWT-SVID expires too soon to be reused for a retry.
func (s *Service) bearerToken(ctx context.Context, callback guest.Callback) (string, error) {
	if callback.Audience == "" {
		return callback.Code, nil
	}

	token, err := s.identity.fetchJWT(ctx, callback.Audience)
	s.redactor.addSecrets(token)

	return token, err
}

// useCredential stores a fetched credential in cfg and adds it to the secrets that are redacted. If the
// platform cannot use the credential, it returns the machine's end with the given reason. source names the
// origin of the credential in the message.
func (s *Service) useCredential(cfg *guest.Config, credential guest.Credential, reason, source string) error {
	cfg.SetCredential(credential)
	s.redactor.addConfigSecrets(cfg)

	if err := platformFor(cfg.Platform).validate(cfg); err != nil {
		return newFailure(reason, "%s: %w", source, err)
	}

	return nil
}

// fetchTarget describes an object that the machine cannot work without.
type fetchTarget struct {
	// object names the object in messages. failure is the message if the object was not available in time.
	object, failure string
	// reason is the reason of the machine's end if the object was not available in time.
	reason string
}

// fetchWithRetry calls fetchOnce until it succeeds, returns a terminal error or the deadline has passed. An
// error of type *endError is terminal, every other error is transient. Before a retry, fetchWithRetry waits
// for the delay that fetchOnce returns, or for its own growing delay if that is longer.
func fetchWithRetry[T any](
	ctx context.Context, s *Service, target fetchTarget, fetchOnce func(context.Context) (T, time.Duration, error),
) (T, error) {
	var zero T

	deadline := s.clock.Now().Add(fetchDeadline)
	wait := fetchRetryDelay

	for attempt := 1; ; attempt++ {
		got, delay, err := fetchOnce(ctx)
		if err == nil {
			return got, nil
		}

		if e, ok := errors.AsType[*endError](err); ok {
			return zero, e
		}

		//nolint:sloglint // the message takes one of a few fixed texts
		s.log.Warn("cannot get "+target.object+" yet", "attempt", attempt, "error", s.redactor.redact(err.Error()))

		delay = max(delay, wait)
		if s.clock.Now().Add(delay).After(deadline) {
			return zero, newFailure(target.reason, "%s within %s: %w", target.failure, fetchDeadline, err)
		}

		if err := sleep(ctx, s.clock, delay); err != nil {
			return zero, newFailure(guest.ReasonTerminated, "wait for %s: %w", target.object, err)
		}

		wait = min(2*wait, fetchMaxRetryDelay)
	}
}

// operatorRequest is a request to the operator.
type operatorRequest struct {
	// object names the requested object in messages.
	object      string
	url, bearer string
	// body is JSON. Nil sends no body.
	body []byte
	// maxBytes is the expected maximum size of the response. send reads one byte more, so that the caller can
	// notice a larger response.
	maxBytes int64
}

// send sends the request once and returns the body of the response. If the operator refuses the request, it
// returns the error that newRefusal creates from the refusal. Every other error is transient, and the caller
// should retry after the returned delay.
func (q operatorRequest) send(
	ctx context.Context, client *http.Client, newRefusal func(guest.Refusal) error,
) (body []byte, delay time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.url, bytes.NewReader(q.body))
	if err != nil {
		return nil, 0, newFailure(guest.ReasonConfigInvalid, "create request for %s: %w", q.object, err)
	}

	req.Header.Set("Authorization", "Bearer "+q.bearer)
	req.Header.Set("Accept", "application/json")

	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("request %s: %w", q.object, err)
	}
	defer func() { _ = resp.Body.Close() }()

	body, err = io.ReadAll(io.LimitReader(resp.Body, q.maxBytes+1))
	if err != nil {
		return nil, 0, fmt.Errorf("read the operator's response: %w", err)
	}

	if resp.StatusCode == http.StatusOK {
		return body, 0, nil
	}

	refusal := parseRefusal(body, resp.Status)
	if isTransientStatus(resp.StatusCode) {
		return nil, parseRetryAfter(resp.Header), errors.New(refusal.Message)
	}

	return nil, 0, newRefusal(refusal)
}

// requestCredential requests the runner's credential once. It returns the results of operatorRequest.send.
func requestCredential(
	ctx context.Context, client *http.Client, url, bearer string,
) (credential guest.Credential, retryAfter time.Duration, err error) {
	request := operatorRequest{object: "the credential", url: url, bearer: bearer, maxBytes: MaxConfigBytes}

	body, delay, err := request.send(ctx, client, func(refusal guest.Refusal) error {
		switch refusal.Reason {
		case guest.ReasonJobGone:
			return newFinish(guest.ReasonJobGone, refusal.Message)
		case guest.ReasonIdentityMismatch:
			return newFailure(guest.ReasonIdentityMismatch, "%s", refusal.Message)
		default:
			return newFailure(guest.ReasonCredentialRefused, "%s", refusal.Message)
		}
	})
	if err != nil {
		return guest.Credential{}, delay, err
	}

	credential, err = parseCredential(body)

	return credential, 0, err
}

// isTransientStatus returns whether a retry can succeed after a response with the status. 404 is transient,
// because a proxy in front of the operator responds with it while it does not know the operator's address.
func isTransientStatus(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	default:
		return status >= http.StatusInternalServerError
	}
}

// parseRetryAfter returns the delay in the header Retry-After. It returns zero if the header is missing, is
// not a number of seconds, or exceeds fetchDeadline.
func parseRetryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 0 || seconds > int(fetchDeadline/time.Second) {
		return 0
	}

	return time.Duration(seconds) * time.Second
}

// parseCredential parses the operator's response as strictly as a configuration. Its errors are terminal,
// because the operator accepts the claim code only once.
func parseCredential(body []byte) (guest.Credential, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()

	var out guest.Credential
	if err := dec.Decode(&out); err != nil {
		return out, newFailure(guest.ReasonConfigInvalid, "parse the credential from the operator: %w", describeJSONError(err))
	}

	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return out, newFailure(guest.ReasonConfigInvalid,
			"parse the credential from the operator: text follows the end of the JSON object")
	}

	return out, nil
}

// maxRefusalBytes limits how much of a refusal's message is used.
const maxRefusalBytes = 500

// parseRefusal parses the reason and the message of a refusal. If the body is not a refusal, e.g. because a
// proxy sent it, the message contains only the status.
func parseRefusal(body []byte, status string) guest.Refusal {
	var out guest.Refusal
	if err := json.Unmarshal(body, &out); err != nil {
		out = guest.Refusal{}
	}

	out.Message = strings.ToValidUTF8(out.Message[:min(len(out.Message), maxRefusalBytes)], "")
	out.Message = strings.TrimSuffix("the operator responded "+status+": "+out.Message, ": ")

	return out
}
