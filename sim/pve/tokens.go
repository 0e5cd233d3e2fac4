// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

func tokenRoutes() []route {
	token := schema{"comment": {}, "expire": {kind: kInt}, "privsep": {kind: kBool}}
	tokens := "/access/users/{userid}/token"
	one := tokens + "/{tokenid}"
	return []route{
		newRoute(http.MethodGet, tokens, ClassOther, checkTokenPermission, nil, listTokens),
		newRoute(http.MethodGet, one, ClassOther, checkTokenPermission, nil, getToken),
		newRoute(http.MethodPost, one, ClassOther, checkTokenPermission, token, createToken),
		newRoute(http.MethodPut, one, ClassOther, checkTokenPermission, token.merge(schema{"regenerate": {kind: kBool}}), updateToken),
		newRoute(http.MethodDelete, one, ClassOther, checkTokenPermission, nil, deleteToken),
	}
}

// reTokenName matches the name of a token (pve-tokenid without the user).
var reTokenName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]+$`)

// checkTokenPermission passes for the user itself, and for callers that can change existing users.
func checkTokenPermission(s *Server, c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.access.users[c.vars["userid"]]
	if c.auth.principal() == c.vars["userid"] || known && s.hasAnyPrivilege(c.auth, "/access/groups", "User.Modify") {
		return nil
	}
	return newPermissionError()
}

func (c *call) tokenID() string { return c.vars["userid"] + "!" + c.vars["tokenid"] }

func listTokens(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]map[string]any{}, s.listTokenRows(c.vars["userid"])...), nil
}

// listTokenRows returns a user's tokens, or nil. The caller holds s.mu.
func (s *Server) listTokenRows(user string) []map[string]any {
	var out []map[string]any
	for _, id := range slices.Sorted(maps.Keys(s.access.tokens)) {
		if name, ok := strings.CutPrefix(id, user+"!"); ok {
			row := s.access.tokens[id].toRow()
			row["tokenid"] = name
			out = append(out, row)
		}
	}
	return out
}

func (t Token) toRow() map[string]any {
	out := map[string]any{"privsep": boolToInt(!t.NoPrivSep), "expire": t.Expire}
	if t.Comment != "" {
		out["comment"] = t.Comment
	}
	return out
}

// findToken returns the token of a call. The caller holds s.mu.
func (s *Server) findToken(c *call) (Token, error) {
	t, ok := s.access.tokens[c.tokenID()]
	if !ok {
		return t, dief("no such token '%s' for user '%s'", c.vars["tokenid"], c.vars["userid"])
	}
	return t, nil
}

func getToken(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.findToken(c)
	if err != nil {
		return nil, err
	}
	return t.toRow(), nil
}

func createToken(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.findUser(c); err != nil {
		return nil, err
	}
	if strings.Contains(c.vars["tokenid"], " ") {
		return nil, newMethodError(c.method, c.path)
	}
	if !reTokenName.MatchString(c.vars["tokenid"]) {
		return nil, newParamError("tokenid", "value does not match the regex pattern")
	}
	id := c.tokenID()
	if _, ok := s.access.tokens[id]; ok {
		return nil, newParamError("tokenid", "Token already exists.")
	}
	t := c.applyToken(Token{ID: id, Secret: s.newUUID()})
	s.access.tokens[id] = t
	info := c.echoToken(map[string]any{"privsep": 1})
	return map[string]any{"full-tokenid": id, "value": t.Secret, "info": info}, nil
}

// applyToken sets the fields of a token that the call has.
func (c *call) applyToken(t Token) Token {
	if c.hasParam("comment") {
		t.Comment = c.param("comment")
	}
	if c.hasParam("privsep") {
		t.NoPrivSep = !c.boolParam("privsep")
	}
	if c.hasParam("expire") {
		t.Expire = int64(c.intParam("expire"))
	}
	return t
}

// echoToken adds the fields of the call to a token's row: a response has them as text, as they were sent.
func (c *call) echoToken(row map[string]any) map[string]any {
	for _, k := range []string{"comment", "expire", "privsep"} {
		if c.hasParam(k) {
			row[k] = c.param(k)
		}
	}
	return row
}

// updateToken changes a token and, with regenerate, replaces its secret.
func updateToken(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.findToken(c)
	if err != nil {
		return nil, err
	}
	t := c.applyToken(old)
	row := old.toRow()
	if old.Expire == 0 && !c.hasParam("comment") && !c.boolParam("regenerate") {
		delete(row, "expire")
	}
	out := c.echoToken(row)
	if c.boolParam("regenerate") {
		t.Secret = s.newUUID()
		out["full-tokenid"], out["value"] = t.ID, t.Secret
	}
	s.access.tokens[t.ID] = t
	return out, nil
}

func deleteToken(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.findToken(c)
	if err != nil {
		return nil, err
	}
	delete(s.access.tokens, t.ID)
	s.access.acl = slices.DeleteFunc(s.access.acl, func(g ACL) bool { return g.Principal == t.ID })
	return nil, nil //nolint:nilnil // "data": null
}
