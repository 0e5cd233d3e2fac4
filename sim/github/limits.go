// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits that count over a while: points of a credential by the minute
// (docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api), registrations
// of a scope by five minutes (docs.github.com/actions/reference/limits).
const (
	pointsWindow       = time.Minute
	readPoints         = 1
	writePoints        = 5
	registrationWindow = 5 * time.Minute
	registrationLimit  = 1500
	defaultRetryAfter  = time.Minute
)

// quota is what a user, an App or an installation has spent, whichever of its tokens it
// calls with.
type quota struct {
	used   int // of the hour's calls
	reset  time.Time
	points []spentPoints // of the last minute
}

// quotaOf gives the quota of an installation. The lock is held.
func (s *Server) quotaOf(installation int64) *quota {
	if s.quotas[installation] == nil {
		s.quotas[installation] = &quota{}
	}
	return s.quotas[installation]
}

// spentPoints is one call and what it cost.
type spentPoints struct {
	at   time.Time
	cost int
}

// overPoints counts the call, and says whether the credential's minute is spent. GitHub
// speaks of one endpoint; counting all calls together is stricter.
func (s *Server) overPoints(c *call) bool {
	if s.opts.SecondaryPoints <= 0 {
		return false
	}
	c.cred.points = slices.DeleteFunc(c.cred.points, func(p spentPoints) bool { return c.now.Sub(p.at) >= pointsWindow })
	cost := writePoints
	if c.r.Method == http.MethodGet || c.r.Method == http.MethodHead {
		cost = readPoints
	}
	sum := cost
	for _, p := range c.cred.points {
		sum += p.cost
	}
	if sum > s.opts.SecondaryPoints {
		return true
	}
	c.cred.points = append(c.cred.points, spentPoints{c.now, cost})
	return false
}

// refuseSecondary is the answer of a secondary limit.
func (s *Server) refuseSecondary(header http.Header) *reply {
	after := s.core.Faults().RetryAfter
	if after <= 0 {
		after = defaultRetryAfter
	}
	header.Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
	out := fail(http.StatusForbidden, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.")
	body, _ := out.body.(apiError)
	body.DocumentationURL = "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"
	out.body = body
	return &out
}

// admitRegistration counts a registration of a scope, or says that too many came. The
// lock is held.
func (s *Server) admitRegistration(sc scope) bool {
	now := s.now()
	recent := slices.DeleteFunc(s.registrations[sc], func(at time.Time) bool { return now.Sub(at) >= registrationWindow })
	s.registrations[sc] = recent
	if len(recent) >= s.opts.RegistrationLimit || s.core.Chance(s.core.Faults().RegistrationsLimited) {
		return false
	}
	s.registrations[sc] = append(recent, now)
	return true
}

// refuseRegistration: which words GitHub has for this limit is not documented; that it
// answers 403 or 429 to limits is.
func refuseRegistration() reply {
	out := fail(http.StatusTooManyRequests, "Too many runner registrations. Please wait a few minutes before you try again.")
	out.header = map[string]string{"Retry-After": strconv.Itoa(int(defaultRetryAfter / time.Second))}
	return out
}

// condition answers 304 where the caller has the answer already, which costs nothing of
// the hour's calls
// (docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api). As at
// GitHub the tag depends on who asks.
func (s *Server) condition(c *call, header http.Header, out reply) reply {
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
	for have := range strings.SplitSeq(c.r.Header.Get("If-None-Match"), ",") {
		if strings.TrimPrefix(strings.TrimSpace(have), "W/") != strings.TrimPrefix(tag, "W/") {
			continue
		}
		c.cred.used = max(c.cred.used-1, 0)
		s.showLimit(c.cred, header)
		return reply{status: http.StatusNotModified}
	}
	return out
}

// showLimit sets the X-RateLimit headers.
func (s *Server) showLimit(cred *credential, header http.Header) {
	header.Set("X-Ratelimit-Limit", strconv.Itoa(s.opts.RateLimit))
	header.Set("X-Ratelimit-Used", strconv.Itoa(cred.used))
	header.Set("X-Ratelimit-Remaining", strconv.Itoa(s.opts.RateLimit-cred.used))
	header.Set("X-Ratelimit-Reset", strconv.FormatInt(cred.reset.Unix(), 10))
	header.Set("X-Ratelimit-Resource", "core")
}

// Revoke ends a token, as its owner or GitHub may at any time.
func (s *Server) Revoke(token string) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	delete(s.creds, token)
}
