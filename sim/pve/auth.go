// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// ticketLifetime is how long a ticket is valid.
const ticketLifetime = 2 * time.Hour

// identity is the caller of the API.
type identity struct {
	user  string // name@realm
	token string // the token's name, if one was used
}

// principal returns the caller's name in logs and tasks.
func (i identity) principal() string {
	if i.token != "" {
		return i.user + "!" + i.token
	}
	return i.user
}

// access holds users, tokens, roles and grants.
type access struct {
	key    []byte
	users  map[string]User
	tokens map[string]Token
	groups map[string]string // comments by name
	roles  map[string]map[string]bool
	acl    []ACL
}

func newAccess(m Model) access {
	a := access{
		key: fmt.Appendf(nil, "ticket key %d", m.Seed), users: map[string]User{},
		tokens: map[string]Token{}, groups: map[string]string{}, roles: newBuiltinRoles(m.Version), acl: append([]ACL(nil), m.ACL...),
	}
	for _, u := range m.Users {
		a.users[u.ID] = u
		for _, g := range u.Groups {
			a.groups[g] = ""
		}
	}
	for _, t := range m.Tokens {
		a.tokens[t.ID] = t
	}
	valid := newSet(listPrivileges(m.Version)...)
	for _, r := range m.Roles {
		set := map[string]bool{}
		for _, p := range r.Privileges {
			if valid[p] { // version 9 has VM.GuestAgent.* instead of VM.Monitor
				set[p] = true
			}
		}
		a.roles[r.Name] = set
	}
	return a
}

// authenticate identifies the caller, as the auth handler of PVE::HTTPServer does.
func (s *Server) authenticate(c *call, r *http.Request) error {
	hasToken := strings.HasPrefix(r.Header.Get("Authorization"), "PVEAPIToken")
	if c.path == "/access/ticket" && !hasToken || c.method == http.MethodGet && c.path == "/access/domains" {
		return nil
	}
	for _, f := range s.takeFaults(c, FaultUnauthorized) {
		return newUnauthorizedError(f.reasonOr("Authentication failed!"))
	}
	if auth := r.Header.Get("Authorization"); strings.HasPrefix(auth, "PVEAPIToken") {
		return s.authenticateToken(c, strings.TrimLeft(strings.TrimPrefix(auth, "PVEAPIToken"), "= "))
	}
	ticket := ""
	if found := reTicketHeader.FindStringSubmatch(r.Header.Get("Authorization")); found != nil {
		ticket = found[1]
	}
	if ck, err := r.Cookie("PVEAuthCookie"); err == nil {
		ticket = ck.Value
	}
	if ticket == "" {
		return newUnauthorizedError("No ticket")
	}
	user, err := s.checkTicket(ticket)
	if err != nil {
		return err
	}
	c.auth = identity{user: user}
	csrf := r.Header.Get("Csrfpreventiontoken") // CSRFPreventionToken in its canonical form
	if isWrite(c.method) && !s.isValidCSRF(user, csrf) {
		return newUnauthorizedError("Permission denied - invalid csrf token")
	}
	return nil
}

// reAnyUser matches the ID of a user or a token.
var reAnyUser = regexp.MustCompile(`^[^\s:/]+@[A-Za-z][A-Za-z0-9._-]+(?:![A-Za-z][A-Za-z0-9._-]+)?$`)

// reTicketHeader matches a ticket in the header Authorization, which can have the form of a cookie.
var reTicketHeader = regexp.MustCompile(`(?:^|\s)PVEAuthCookie[= ]([^;]*)`)

// newLoginError returns the response for all tokens and tickets that are refused.
func newLoginError() error { return newUnauthorizedError("Authentication failed!") }

func (s *Server) authenticateToken(c *call, value string) error {
	id, secret, hasSecret := strings.Cut(value, "=")
	user, name, hasName := strings.Cut(id, "!")
	if !hasSecret || !hasName {
		return newLoginError()
	}
	s.mu.Lock()
	u, isKnown := s.access.users[user]
	t, hasToken := s.access.tokens[id]
	s.mu.Unlock()
	isCorrect := subtle.ConstantTimeCompare([]byte(t.Secret), []byte(secret)) == 1
	if !isKnown || !u.canLogIn(s.clk.Now()) || !hasToken || !isCorrect || t.Expire != 0 && s.clk.Now().Unix() >= t.Expire {
		return newLoginError() // the response does not reveal which condition failed
	}
	c.auth = identity{user: user, token: name}
	return nil
}

// canLogIn reports whether a user is enabled and has not expired.
func (u User) canLogIn(now time.Time) bool {
	return !u.Disabled && (u.Expire == 0 || now.Unix() < u.Expire)
}

// sign signs a text with the server's own key. A ticket has the format
// PVE:user@realm:HEXTIME::SIGNATURE, and a CSRF token has the format HEXTIME:SIGNATURE.
func (s *Server) sign(text string) string {
	mac := hmac.New(sha256.New, s.access.key)
	_, _ = mac.Write([]byte(text))
	return base64.RawStdEncoding.EncodeToString(mac.Sum(nil))
}

func (s *Server) newTicket(user string) string {
	plain := fmt.Sprintf("PVE:%s:%08X", user, s.clk.Now().Unix())
	return plain + "::" + s.sign(plain)
}

func (s *Server) checkTicket(ticket string) (string, error) {
	bad := newLoginError()
	plain, sig, ok := strings.Cut(ticket, "::")
	if !ok || !hmac.Equal([]byte(sig), []byte(s.sign(plain))) {
		return "", bad
	}
	parts := strings.Split(plain, ":")
	if len(parts) != 3 || s.isExpired(parts[2]) {
		return "", bad
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u, known := s.access.users[parts[1]]
	if !known || u.Disabled {
		return "", bad
	}
	return parts[1], nil
}

func (s *Server) newCSRF(user string) string {
	stamp := fmt.Sprintf("%08X", s.clk.Now().Unix())
	return stamp + ":" + s.sign("csrf:"+stamp+":"+user)
}

func (s *Server) isValidCSRF(user, token string) bool {
	stamp, sig, ok := strings.Cut(token, ":")
	return ok && hmac.Equal([]byte(sig), []byte(s.sign("csrf:"+stamp+":"+user))) && !s.isExpired(stamp)
}

func (s *Server) isExpired(hexTime string) bool {
	stamp, err := strconv.ParseInt(hexTime, 16, 64)
	if err != nil {
		return true
	}
	age := s.clk.Now().Sub(time.Unix(stamp, 0))
	return age > ticketLifetime || age < -5*time.Minute
}

// accessRoutes returns some of the calls below /access, and /version.
func accessRoutes() []route {
	ticket := schema{
		"username": {required: true, maxLen: 64}, "password": {required: true},
		"realm": {}, "otp": {}, "path": {}, "privs": {}, "new-format": {kind: kBool}, "tfa-challenge": {},
	}
	return []route{
		newRoute(http.MethodPost, "/access/ticket", ClassOther, nil, ticket, createTicket),
		newRoute(http.MethodGet, "/access/permissions", ClassOther, nil,
			schema{"path": {}, "userid": {check: newPatternCheck(reAnyUser)}}, getPermissions),
		newRoute(http.MethodGet, "/version", ClassOther, nil, nil, getVersion),
	}
}

// createTicket logs in with a password. A valid ticket as the password renews the ticket.
func createTicket(s *Server, c *call) (any, error) {
	user := c.param("username")
	if realm := c.param("realm"); realm != "" && !strings.Contains(user, "@") {
		user += "@" + realm
	}
	if !s.isValidLogin(user, c.param("password")) || c.hasParam("otp") || !s.hasTicketPrivileges(user, c) {
		s.sleep(c.ctx, s.model.Delays.LoginFailure)
		return nil, newUnauthorizedError("authentication failure")
	}
	c.auth = identity{user: user}
	s.mu.Lock()
	caps := s.listCapabilities(c.auth)
	s.mu.Unlock()
	if c.hasParam("privs") { // a check, and no login
		return map[string]any{"username": user, "cap": caps}, nil
	}
	out := map[string]any{"username": user, "ticket": s.newTicket(user), "CSRFPreventionToken": s.newCSRF(user), "cap": caps}
	if len(s.model.Nodes) > 1 {
		out["clustername"] = s.model.Cluster
	}
	return out, nil
}

// hasTicketPrivileges reports whether a user has the privileges that the call asks for. No user has a second factor.
func (s *Server) hasTicketPrivileges(user string, c *call) bool {
	return !c.hasParam("privs") || s.require(identity{user: user}, c.param("path"), splitTags(c.param("privs"))...) == nil
}

func (s *Server) isValidLogin(user, password string) bool {
	if strings.HasPrefix(password, "PVE:") {
		owner, err := s.checkTicket(password)
		return err == nil && owner == user
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.access.users[user]
	return ok && u.canLogIn(s.clk.Now()) && u.Password != "" &&
		subtle.ConstantTimeCompare([]byte(u.Password), []byte(password)) == 1
}

func getVersion(s *Server, _ *call) (any, error) {
	release := s.version()
	if i := strings.LastIndex(release, "."); i > 0 {
		release = release[:i]
	}
	return map[string]any{"version": s.version(), "release": release, "repoid": "0123456789abcdef"}, nil
}
