// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits per time window: points of a credential per minute
// (docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api), and registrations of a
// scope per five minutes (docs.github.com/actions/reference/limits).
const (
	pointsWindow       = time.Minute
	readPoints         = 1
	writePoints        = 5
	registrationWindow = 5 * time.Minute
	registrationLimit  = 1500
	defaultRetryAfter  = time.Minute
)

// quota is the usage of a user, an App or an installation. All tokens of the same owner share a
// quota.
type quota struct {
	used    int // calls in this hour
	resetAt time.Time
	points  []pointUse // in the last minute
}

// ensureQuota returns the quota of an installation, and creates it if it is missing. The lock is
// held.
func (s *Server) ensureQuota(installation int64) *quota {
	if s.quotas[installation] == nil {
		s.quotas[installation] = &quota{}
	}
	return s.quotas[installation]
}

// pointUse is the cost of one call.
type pointUse struct {
	time time.Time
	cost int
}

// exceedsPoints reports whether the call exceeds the credential's points per minute. If it does
// not, exceedsPoints counts the call. GitHub's limit is per endpoint. The simulator counts all
// calls together, which is stricter.
func (s *Server) exceedsPoints(c *call) bool {
	if s.opts.SecondaryPoints <= 0 {
		return false
	}
	c.cred.points = slices.DeleteFunc(c.cred.points, func(p pointUse) bool { return c.now.Sub(p.time) >= pointsWindow })
	cost := writePoints
	if c.r.Method == http.MethodGet || c.r.Method == http.MethodHead {
		cost = readPoints
	}
	total := cost
	for _, p := range c.cred.points {
		total += p.cost
	}
	if total > s.opts.SecondaryPoints {
		return true
	}
	c.cred.points = append(c.cred.points, pointUse{c.now, cost})
	return false
}

// newSecondaryLimitError returns the response to a call that exceeds a secondary limit.
func (s *Server) newSecondaryLimitError(header http.Header) *response {
	delay := s.core.Faults().RetryAfter
	if delay <= 0 {
		delay = defaultRetryAfter
	}
	header.Set("Retry-After", strconv.Itoa(int((delay+time.Second-1)/time.Second)))
	out := newError(http.StatusForbidden,
		"You have exceeded a secondary rate limit. Please wait a few minutes before you try again.")
	body, _ := out.body.(apiError)
	body.DocumentationURL = "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"
	out.body = body
	return &out
}

// admitRegistration counts a registration of a scope. If too many runners of the scope were
// registered, it returns false and does not count the registration. The lock is held.
func (s *Server) admitRegistration(sc scope) bool {
	now := s.now()
	recent := slices.DeleteFunc(s.registrations[sc], func(at time.Time) bool { return now.Sub(at) >= registrationWindow })
	s.registrations[sc] = recent
	if len(recent) >= s.opts.RegistrationLimit || s.core.Occurs(s.core.Faults().RegistrationsLimited) {
		return false
	}
	s.registrations[sc] = append(recent, now)
	return true
}

// newRegistrationLimitError returns the response to a registration that exceeds the limit. GitHub
// documents that it responds to limits with 403 or 429, but not the text for this limit.
func newRegistrationLimitError() response {
	out := newError(http.StatusTooManyRequests, "Too many runner registrations. Please wait a few minutes before you try again.")
	out.header = map[string]string{"Retry-After": strconv.Itoa(int(defaultRetryAfter / time.Second))}
	return out
}

// applyETag sets the ETag of a response, and replaces the response with 304 if the request names
// this ETag. A 304 does not count as a call of the hour
// (docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api). As at GitHub,
// the ETag depends on the credential.
func (s *Server) applyETag(c *call, header http.Header, out response) response {
	if c.r.Method != http.MethodGet || out.status != http.StatusOK {
		return out
	}
	text, err := json.Marshal(out.body)
	if err != nil {
		return out
	}
	sum := sha256.Sum256(append(text, out.link+c.r.Header.Get("Authorization")...))
	tag := `W/"` + hex.EncodeToString(sum[:]) + `"`
	header.Set("Etag", tag)
	header.Set("Vary", "Accept, Authorization, Cookie, Accept-Encoding")
	for candidate := range strings.SplitSeq(c.r.Header.Get("If-None-Match"), ",") {
		if strings.TrimPrefix(strings.TrimSpace(candidate), "W/") != strings.TrimPrefix(tag, "W/") {
			continue
		}
		c.cred.used = max(c.cred.used-1, 0)
		s.setLimitHeaders(c.cred, header)
		return response{status: http.StatusNotModified}
	}
	return out
}

// setLimitHeaders sets the X-RateLimit headers.
func (s *Server) setLimitHeaders(cred *credential, header http.Header) {
	header.Set("X-Ratelimit-Limit", strconv.Itoa(s.opts.RateLimit))
	header.Set("X-Ratelimit-Used", strconv.Itoa(cred.used))
	header.Set("X-Ratelimit-Remaining", strconv.Itoa(s.opts.RateLimit-cred.used))
	header.Set("X-Ratelimit-Reset", strconv.FormatInt(cred.resetAt.Unix(), 10))
	header.Set("X-Ratelimit-Resource", "core")
}

// RevokeToken makes a token invalid, as its owner or GitHub can at any time.
func (s *Server) RevokeToken(token string) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	delete(s.credentials, token)
}

// ReplaceAppKey makes the server accept only JWTs that another private key of the App has signed. Installation tokens
// stay valid until they expire.
func (s *Server) ReplaceAppKey(public *rsa.PublicKey) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.opts.App.PublicKey = public
}
