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

// scopeKind is the level runners are registered at.
type scopeKind int

const (
	scopeNone scopeKind = iota
	scopeRepo
	scopeOrg
	scopeEnterprise
)

// scope is a place runners, groups and tokens belong to; name is lower case.
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

// credential is whoever calls: a PAT, an installation token, or an App by JWT.
type credential struct {
	id          string // names it in the rate limit's message
	classic     bool
	scopes      []string
	permissions map[string]string
	repos       map[string]bool // lower case; nil: all
	account     string          // installation tokens see this account only
	app         bool            // a JWT: App endpoints only
	install     int64
	expires     time.Time // zero: never

	*quota
}

// access says which right an endpoint needs.
type access struct {
	app        bool     // an App JWT
	anyone     bool     // any valid credential
	permission string   // of App installations and fine-grained tokens
	write      bool     // level of permission
	scopes     []string // classic scopes, any of them
}

func (s *Server) addCredentials() error {
	for i, pat := range s.opts.PATs {
		if pat.Token == "" {
			return fmt.Errorf("add credentials: PAT %d has no token", i)
		}
		s.creds[pat.Token] = &credential{
			id: fmt.Sprintf("user ID %d", 1+i), classic: pat.Permissions == nil, quota: &quota{},
			scopes: pat.Scopes, permissions: pat.Permissions, repos: lowerSet(pat.Repos),
		}
	}
	return nil
}

func lowerSet(names []string) map[string]bool {
	if len(names) == 0 {
		return nil
	}
	set := map[string]bool{}
	for _, name := range names {
		set[strings.ToLower(name)] = true
	}
	return set
}

// authenticate finds the caller. GitHub takes "Bearer" and "token" alike.
func (s *Server) authenticate(c *call) (*credential, *reply) {
	kind, token, ok := strings.Cut(c.r.Header.Get("Authorization"), " ")
	if !ok || (!strings.EqualFold(kind, "bearer") && !strings.EqualFold(kind, "token")) {
		out := fail(http.StatusUnauthorized, "Requires authentication")
		return nil, &out
	}
	if strings.Count(token, ".") == 2 {
		return s.authenticateApp(token, c.now)
	}
	cred, ok := s.creds[token]
	if !ok || (!cred.expires.IsZero() && !c.now.Before(cred.expires)) || s.core.Chance(s.core.Faults().Unauthorized) {
		out := fail(http.StatusUnauthorized, "Bad credentials")
		return nil, &out
	}
	return cred, nil
}

// maxJWTLife and clockDrift: docs "Generating a JSON Web Token for a GitHub App":
// at most ten minutes, and a minute of drift is allowed for.
const (
	maxJWTLife = 10 * time.Minute
	clockDrift = time.Minute
)

func (s *Server) authenticateApp(token string, now time.Time) (*credential, *reply) {
	deny := func(message string) (*credential, *reply) {
		out := fail(http.StatusUnauthorized, message)
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
	expires, err := seconds(claims.Expires.String())
	if err != nil || !now.Add(-clockDrift).Before(expires) {
		return deny("'Expiration time' claim ('exp') must be a numeric value " +
			"representing the future time at which the assertion expires")
	}
	if expires.After(now.Add(maxJWTLife + clockDrift)) {
		return deny("'Expiration time' claim ('exp') is too far in the future")
	}
	issued, err := seconds(claims.IssuedAt.String())
	if err != nil || issued.After(now.Add(clockDrift)) {
		return deny("'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued")
	}
	key := "app"
	if s.creds[key] == nil {
		s.creds[key] = &credential{id: "app ID " + strconv.FormatInt(app.ID, 10), app: true, quota: &quota{}}
	}
	return s.creds[key], nil
}

func seconds(text string) (time.Time, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse seconds: %w", err)
	}
	return time.Unix(int64(value), 0), nil
}

// authorize resolves the call's scope and checks rights on it. GitHub hides
// what the caller may not see behind 404.
func (s *Server) authorize(c *call, need access, header http.Header) *reply {
	if c.cred.classic {
		header.Set("X-Oauth-Scopes", strings.Join(c.cred.scopes, ", "))
		header.Set("X-Accepted-Oauth-Scopes", strings.Join(need.scopes, ", "))
	} else if need.permission != "" {
		header.Set("X-Accepted-Github-Permissions", need.permission+"="+level(need.write))
	}
	switch {
	case need.app && !c.cred.app:
		return deny(http.StatusUnauthorized, "A JSON web token could not be decoded")
	case need.anyone, need.app:
		return nil
	case c.cred.app:
		return deny(http.StatusUnauthorized, "A JSON web token cannot be used here; use an installation access token")
	}
	if !s.resolve(c) || !s.visible(c.cred, c.scope, need) {
		out := notFound()
		return &out
	}
	if c.cred.allows(need) {
		return nil
	}
	switch {
	case c.cred.classic:
		return deny(http.StatusForbidden, "Must have admin rights to Repository.")
	case c.cred.install != 0:
		return deny(http.StatusForbidden, "Resource not accessible by integration")
	default:
		return deny(http.StatusForbidden, "Resource not accessible by personal access token")
	}
}

func deny(status int, message string) *reply {
	out := fail(status, message)
	return &out
}

func level(write bool) string {
	if write {
		return "write"
	}
	return "read"
}

func (c *credential) allows(need access) bool {
	if c.classic {
		return slices.ContainsFunc(need.scopes, func(s string) bool { return slices.Contains(c.scopes, s) })
	}
	granted := c.permissions[need.permission]
	return granted == "write" || granted == "admin" || (!need.write && granted == "read")
}

// resolve fills in c.scope from the path; false when there is no such place.
func (s *Server) resolve(c *call) bool {
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

func (s *Server) visible(cred *credential, sc scope, need access) bool {
	switch sc.kind {
	case scopeRepo:
		repo := s.repos[sc.name]
		if cred.repos != nil && !cred.repos[sc.name] {
			return !repo.private
		}
		if cred.account != "" && !strings.EqualFold(cred.account, repo.owner.login) {
			return !repo.private
		}
		return !repo.private || !cred.classic || slices.Contains(cred.scopes, "repo")
	case scopeOrg:
		return cred.account == "" || strings.EqualFold(cred.account, sc.name)
	case scopeEnterprise:
		return cred.allows(need)
	case scopeNone:
	}
	return true
}

// limit counts the call and sets the X-RateLimit headers. /rate_limit is free.
func (s *Server) limit(c *call, header http.Header) *reply {
	if s.opts.Unlimited {
		return nil
	}
	cred, most := c.cred, s.opts.RateLimit
	if !c.now.Before(cred.reset) {
		cred.used, cred.reset = 0, c.now.Add(time.Hour).Truncate(time.Second)
	}
	free := c.op.id == "rate-limit/get"
	spent := !free && (cred.used >= most || s.core.Chance(s.core.Faults().RateLimit))
	if spent {
		cred.used = most
	} else if !free {
		cred.used++
	}
	s.showLimit(cred, header)
	if spent {
		return deny(http.StatusForbidden, "API rate limit exceeded for "+cred.id+".")
	}
	if !free && (s.overPoints(c) || s.core.Chance(s.core.Faults().SecondaryRateLimit)) {
		return s.refuseSecondary(header)
	}
	return nil
}

func (s *Server) answerRateLimit(c *call) reply {
	bucket := map[string]any{
		"limit": s.opts.RateLimit, "used": c.cred.used, "remaining": s.opts.RateLimit - c.cred.used,
		"reset": c.cred.reset.Unix(),
	}
	search := maps.Clone(bucket)
	search["limit"], search["used"], search["remaining"] = 30, 0, 30
	return reply{status: http.StatusOK, body: map[string]any{
		"resources": map[string]any{"core": bucket, "search": search}, "rate": bucket,
	}}
}
