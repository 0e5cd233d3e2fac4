// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

// scopeKind is the level at which runners are registered.
type scopeKind int

const (
	scopeNone scopeKind = iota
	scopeRepo
	scopeOrg
	scopeEnterprise
)

// scope is the repository, organisation or enterprise that runners, groups and tokens belong to.
// name is in lower case.
type scope struct {
	kind scopeKind
	name string
}

func (sc scope) String() string {
	if sc.kind == scopeEnterprise {
		return "enterprises/" + sc.name
	}
	return sc.name
}

// credential is an accepted credential: a PAT, an installation token, or the JWT of an App.
type credential struct {
	id             string // identifies the credential in the message of the rate limit
	isClassic      bool
	scopes         []string
	permissions    map[string]string
	repos          map[string]bool // in lower case; nil: all
	account        string          // installation tokens have access to this account only
	isApp          bool            // a JWT, for the App endpoints only
	installationID int64
	expiresAt      time.Time // zero: never

	*quota
}

// access is the permission that an endpoint requires.
type access struct {
	needsApp     bool     // requires the JWT of an App
	allowsAnyone bool     // any valid credential
	permission   string   // of App installations and fine-grained tokens
	write        bool     // whether the permission must be write
	scopes       []string // scopes of classic tokens; one of them is enough
}

func (s *Server) addCredentials() error {
	for i, pat := range s.opts.PATs {
		if pat.Token == "" {
			return fmt.Errorf("add credentials: PAT %d has no token", i)
		}
		s.credentials[pat.Token] = &credential{
			id: fmt.Sprintf("user ID %d", 1+i), isClassic: pat.Permissions == nil, quota: &quota{},
			scopes: pat.Scopes, permissions: pat.Permissions, repos: newLowerSet(pat.Repos),
		}
	}
	return nil
}

func newLowerSet(names []string) map[string]bool {
	if len(names) == 0 {
		return nil
	}
	set := map[string]bool{}
	for _, name := range names {
		set[strings.ToLower(name)] = true
	}
	return set
}

// authenticate returns the credential of a call. Like GitHub, it accepts both "Bearer" and "token".
func (s *Server) authenticate(c *call) (*credential, *response) {
	kind, token, ok := strings.Cut(c.r.Header.Get("Authorization"), " ")
	if !ok || (!strings.EqualFold(kind, "bearer") && !strings.EqualFold(kind, "token")) {
		out := newError(http.StatusUnauthorized, "Requires authentication")
		return nil, &out
	}
	if strings.Count(token, ".") == 2 {
		return s.authenticateApp(token, c.now)
	}
	cred, ok := s.credentials[token]
	if !ok || (!cred.expiresAt.IsZero() && !c.now.Before(cred.expiresAt)) || s.core.Occurs(s.core.Faults().Unauthorized) {
		out := newError(http.StatusUnauthorized, "Bad credentials")
		return nil, &out
	}
	return cred, nil
}

// Limits of the JWT of an App. GitHub's documentation "Generating a JSON Web Token for a GitHub App"
// allows a lifetime of at most ten minutes and a clock drift of one minute.
const (
	maxJWTLifetime = 10 * time.Minute
	maxClockDrift  = time.Minute
)

func (s *Server) authenticateApp(token string, now time.Time) (*credential, *response) {
	deny := func(message string) (*credential, *response) {
		out := newError(http.StatusUnauthorized, message)
		return nil, &out
	}
	app := s.opts.App
	if app == nil {
		return deny("A JSON web token could not be decoded")
	}
	claims, err := protocol.Verify(app.PublicKey, token)
	if err != nil {
		return deny("A JSON web token could not be decoded")
	}
	issuer := claims.IssuerText()
	if issuer != strconv.FormatInt(app.ID, 10) && (app.ClientID == "" || issuer != app.ClientID) {
		return deny("'Issuer' claim ('iss') must be an Integer")
	}
	expires, err := parseUnixTime(claims.ExpiresAt.String())
	if err != nil || !now.Add(-maxClockDrift).Before(expires) {
		return deny("'Expiration time' claim ('exp') must be a numeric value " +
			"representing the future time at which the assertion expires")
	}
	if expires.After(now.Add(maxJWTLifetime + maxClockDrift)) {
		return deny("'Expiration time' claim ('exp') is too far in the future")
	}
	issued, err := parseUnixTime(claims.IssuedAt.String())
	if err != nil || issued.After(now.Add(maxClockDrift)) {
		return deny("'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued")
	}
	key := "app"
	if s.credentials[key] == nil {
		s.credentials[key] = &credential{id: "app ID " + strconv.FormatInt(app.ID, 10), isApp: true, quota: &quota{}}
	}
	return s.credentials[key], nil
}

func parseUnixTime(text string) (time.Time, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse seconds: %w", err)
	}
	return time.Unix(int64(value), 0), nil
}

// authorize resolves the scope of a call and checks the permissions of the credential. Like GitHub,
// it responds with 404 to a call for a scope that the credential cannot see.
func (s *Server) authorize(c *call, required access, header http.Header) *response {
	if c.cred.isClassic {
		header.Set("X-Oauth-Scopes", strings.Join(c.cred.scopes, ", "))
		header.Set("X-Accepted-Oauth-Scopes", strings.Join(required.scopes, ", "))
	} else if required.permission != "" {
		header.Set("X-Accepted-Github-Permissions", required.permission+"="+accessLevel(required.write))
	}
	switch {
	case required.needsApp && !c.cred.isApp:
		return newDenial(http.StatusUnauthorized, "A JSON web token could not be decoded")
	case required.allowsAnyone, required.needsApp:
		return nil
	case c.cred.isApp:
		return newDenial(http.StatusUnauthorized, "A JSON web token cannot be used here; use an installation access token")
	}
	if !s.resolveScope(c) || !s.isVisible(c.cred, c.scope, required) {
		out := newNotFound()
		return &out
	}
	if c.cred.allows(required) {
		return nil
	}
	switch {
	case c.cred.isClassic:
		return newDenial(http.StatusForbidden, "Must have admin rights to Repository.")
	case c.cred.installationID != 0:
		return newDenial(http.StatusForbidden, "Resource not accessible by integration")
	default:
		return newDenial(http.StatusForbidden, "Resource not accessible by personal access token")
	}
}

func newDenial(status int, message string) *response {
	out := newError(status, message)
	return &out
}

func accessLevel(write bool) string {
	if write {
		return "write"
	}
	return "read"
}

func (c *credential) allows(required access) bool {
	if c.isClassic {
		return slices.ContainsFunc(required.scopes, func(s string) bool { return slices.Contains(c.scopes, s) })
	}
	granted := c.permissions[required.permission]
	return granted == "write" || granted == "admin" || (!required.write && granted == "read")
}

// resolveScope sets c.scope from the path. It returns false if the scope does not exist.
func (s *Server) resolveScope(c *call) bool {
	p := c.params
	switch {
	case p["owner"] != "":
		c.scope = scope{scopeRepo, strings.ToLower(p["owner"] + "/" + p["repo"])}
		return s.repos[c.scope.name] != nil
	case p["org"] != "":
		c.scope = scope{scopeOrg, strings.ToLower(p["org"])}
		org := s.orgs[c.scope.name]
		return org != nil && !org.user
	case p["enterprise"] != "":
		c.scope = scope{scopeEnterprise, strings.ToLower(p["enterprise"])}
		return s.opts.Enterprise != "" && strings.EqualFold(s.opts.Enterprise, p["enterprise"])
	}
	return true
}

func (s *Server) isVisible(cred *credential, sc scope, required access) bool {
	switch sc.kind {
	case scopeRepo:
		repo := s.repos[sc.name]
		if cred.repos != nil && !cred.repos[sc.name] {
			return !repo.private
		}
		if cred.account != "" && !strings.EqualFold(cred.account, repo.owner.login) {
			return !repo.private
		}
		return !repo.private || !cred.isClassic || slices.Contains(cred.scopes, "repo")
	case scopeOrg:
		return cred.account == "" || strings.EqualFold(cred.account, sc.name)
	case scopeEnterprise:
		return cred.allows(required)
	case scopeNone:
	}
	return true
}

// applyRateLimit counts the call and sets the X-RateLimit headers. Calls of /rate_limit do not
// count. It returns the response to a call that exceeds a limit, or nil.
func (s *Server) applyRateLimit(c *call, header http.Header) *response {
	if s.opts.Unlimited {
		return nil
	}
	cred, limit := c.cred, s.opts.RateLimit
	if !c.now.Before(cred.resetAt) {
		cred.used, cred.resetAt = 0, c.now.Add(time.Hour).Truncate(time.Second)
	}
	isFree := c.op.id == "rate-limit/get"
	isExhausted := !isFree && (cred.used >= limit || s.core.Occurs(s.core.Faults().RateLimit))
	if isExhausted {
		cred.used = limit
	} else if !isFree {
		cred.used++
	}
	s.setLimitHeaders(cred, header)
	if isExhausted {
		return newDenial(http.StatusForbidden, "API rate limit exceeded for "+cred.id+".")
	}
	if !isFree && (s.exceedsPoints(c) || s.core.Occurs(s.core.Faults().SecondaryRateLimit)) {
		return s.newSecondaryLimitError(header)
	}
	return nil
}

func (s *Server) getRateLimit(c *call) response {
	bucket := map[string]any{
		"limit": s.opts.RateLimit, "used": c.cred.used, "remaining": s.opts.RateLimit - c.cred.used,
		"reset": c.cred.resetAt.Unix(),
	}
	search := maps.Clone(bucket)
	search["limit"], search["used"], search["remaining"] = 30, 0, 30
	return response{status: http.StatusOK, body: map[string]any{
		"resources": map[string]any{"core": bucket, "search": search}, "rate": bucket,
	}}
}
