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

// How the credential is asked for. The machine can do nothing without it, so it goes on
// for as long as its operator may be away, and no longer than a machine is waited for.
const (
	fetchTimeout  = 45 * time.Second // one try; the operator takes less
	fetchDeadline = 10 * time.Minute // all tries
	fetchPause    = time.Second      // after the first one; it doubles
	fetchMaxPause = 30 * time.Second
)

// fetchCredential gets the credential from the operator, with method callback, and puts it
// where the cloud-init ISO has it with other methods.
func (s *Service) fetchCredential(ctx context.Context, cfg *guest.Config) error {
	if cfg.Method != guest.MethodCallback {
		return nil
	}

	to := *cfg.Callback

	client, err := operatorClient("callback", to.CABundle, fetchTimeout)
	if err != nil {
		return failed(guest.ReasonConfigInvalid, "%w", err)
	}

	defer client.CloseIdleConnections()

	credential, err := insist(ctx, s, persistence{
		what: "the credential", reason: guest.ReasonCredentialUnavailable, lacks: "the operator gave no credential",
	}, func(ctx context.Context) (guest.Credential, time.Duration, error) {
		bearer, err := s.bearer(ctx, to)
		if err != nil {
			return guest.Credential{}, 0, err
		}

		return askCredential(ctx, client, to.URL, bearer)
	})
	if err != nil {
		return err
	}

	cfg.Callback = nil // it is worth nothing any more

	return s.accept(cfg, credential, guest.ReasonConfigInvalid, "credential from the operator")
}

// bearer proves to the operator who asks: by the claim code, or by a JWT-SVID, which is too
// short-lived to be kept for another try.
func (s *Service) bearer(ctx context.Context, to guest.Callback) (string, error) {
	if to.Audience == "" {
		return to.Code, nil
	}

	token, err := s.identity.jwt(ctx, to.Audience)
	s.redact.hide(token)

	return token, err
}

// accept takes a credential that was fetched. Reason is that of a credential which the
// platform cannot use.
func (s *Service) accept(cfg *guest.Config, credential guest.Credential, reason, from string) error {
	cfg.SetCredential(credential)
	s.redact.hideAll(cfg)

	if err := platformOf(cfg.Platform).check(cfg); err != nil {
		return failed(reason, "%s: %w", from, err)
	}

	return nil
}

// persistence is how a thing is asked for that the machine can do nothing without.
type persistence struct {
	// what is asked for, lacks what there is not at the end, for people.
	what, lacks string
	// reason of the machine's end when it was not available in time.
	reason string
}

// insist asks until there is an answer that more asking does not change: an *end is the last
// word, after any other error another try may help, after as long as the other side says.
func insist[T any](
	ctx context.Context, s *Service, p persistence, ask func(context.Context) (T, time.Duration, error),
) (T, error) {
	var none T

	until := s.clock.Now().Add(fetchDeadline)
	wait := fetchPause

	for try := 1; ; try++ {
		got, after, err := ask(ctx)
		if err == nil {
			return got, nil
		}

		if e, ok := errors.AsType[*end](err); ok {
			return none, e
		}

		s.log.Warn("cannot get "+p.what+" yet", "try", try, "error", s.redact.clean(err.Error())) //nolint:sloglint // a few texts

		after = max(after, wait)
		if s.clock.Now().Add(after).After(until) {
			return none, failed(p.reason, "%s within %s: %w", p.lacks, fetchDeadline, err)
		}

		if err := pause(ctx, s.clock, after); err != nil {
			return none, failed(guest.ReasonTerminated, "wait for %s: %w", p.what, err)
		}

		wait = min(2*wait, fetchMaxPause)
	}
}

// question is what the operator is asked for.
type question struct {
	// what is asked for, for people.
	what        string
	url, bearer string
	// body as JSON; nil for none.
	body []byte
	// most bytes are read of the answer, and one more.
	most int64
}

// ask asks once. The error that refused makes of the operator's no is its last word; after any
// other error another try may help, after as long as the operator says.
func (q question) ask(
	ctx context.Context, client *http.Client, refused func(guest.Refusal) error,
) (answer []byte, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.url, bytes.NewReader(q.body))
	if err != nil {
		return nil, 0, failed(guest.ReasonConfigInvalid, "make request for %s: %w", q.what, err)
	}

	req.Header.Set("Authorization", "Bearer "+q.bearer)
	req.Header.Set("Accept", "application/json")

	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("ask for %s: %w", q.what, err)
	}
	defer func() { _ = resp.Body.Close() }()

	answer, err = io.ReadAll(io.LimitReader(resp.Body, q.most+1))
	if err != nil {
		return nil, 0, fmt.Errorf("read the operator's answer: %w", err)
	}

	if resp.StatusCode == http.StatusOK {
		return answer, 0, nil
	}

	said := readRefusal(answer, resp.Status)
	if mayPass(resp.StatusCode) {
		return nil, retryAfter(resp.Header), errors.New(said.Message)
	}

	return nil, 0, refused(said)
}

// askCredential asks for the runner's credential once; see question.
func askCredential(ctx context.Context, client *http.Client, url, bearer string) (guest.Credential, time.Duration, error) {
	answer, after, err := question{what: "the credential", url: url, bearer: bearer, most: MaxConfigBytes}.ask(ctx, client,
		func(said guest.Refusal) error {
			switch said.Reason {
			case guest.ReasonJobGone:
				return ended(guest.ReasonJobGone, said.Message)
			case guest.ReasonIdentityMismatch:
				return failed(guest.ReasonIdentityMismatch, "%s", said.Message)
			default:
				return failed(guest.ReasonCredentialRefused, "%s", said.Message)
			}
		})
	if err != nil {
		return guest.Credential{}, after, err
	}

	credential, err := readCredential(answer)

	return credential, 0, err
}

// mayPass says whether another try may help. A 404 is what a proxy before the operator
// answers while it does not know where that is.
func mayPass(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	default:
		return status >= http.StatusInternalServerError
	}
}

// retryAfter is how long the operator wants to be left alone, within reason.
func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 0 || seconds > int(fetchDeadline/time.Second) {
		return 0
	}

	return time.Duration(seconds) * time.Second
}

// readCredential reads the operator's answer as strictly as a configuration. What cannot be
// read is lost: the code was used for it.
func readCredential(body []byte) (guest.Credential, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()

	var out guest.Credential
	if err := dec.Decode(&out); err != nil {
		return out, failed(guest.ReasonConfigInvalid, "read the credential from the operator: %w", jsonError(err))
	}

	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return out, failed(guest.ReasonConfigInvalid, "read the credential from the operator: text follows the end of the JSON object")
	}

	return out, nil
}

// maxRefusal bounds the words that are taken over from a refusal.
const maxRefusal = 500

// readRefusal reads why there is no credential; whoever else answers on the way has the
// status alone to say.
func readRefusal(body []byte, status string) guest.Refusal {
	var out guest.Refusal
	if err := json.Unmarshal(body, &out); err != nil {
		out = guest.Refusal{}
	}

	out.Message = strings.ToValidUTF8(out.Message[:min(len(out.Message), maxRefusal)], "")
	out.Message = strings.TrimSuffix("the operator answered "+status+": "+out.Message, ": ")

	return out
}
