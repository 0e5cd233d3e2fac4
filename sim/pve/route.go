// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// handler answers one call; the value becomes "data".
type handler func(s *Server, c *call) (any, error)

// route is one method of the API.
type route struct {
	method  string
	pattern []string // segments; {name} binds one, {name...} the rest
	class   Class
	perm    permCheck
	params  schema
	handle  handler
	forks   bool // starts a task
	// freeParams leaves the parameters to the handler, which knows them better.
	freeParams bool
}

// call is one request on its way through.
type call struct {
	ctx    context.Context //nolint:containedctx // the server's: calls outlive their clients
	id     int64
	method string
	path   string
	vars   map[string]string
	params map[string]string
	lists  map[string][]string
	upload *upload
	auth   identity
	node   string // the node that handles it
	vmid   int
	route  *route
	faults []*faultRule // those that hit this call
	upid   string
}

func newRoute(method, path string, class Class, perm permCheck, params schema, h handler) route {
	return route{
		method: method, pattern: strings.Split(strings.TrimPrefix(path, "/"), "/"),
		class: class, perm: perm, params: params, handle: h,
	}
}

// async marks a method that answers with a UPID.
func (r route) async() route {
	r.forks = true
	return r
}

// match binds the variables of a pattern.
func (r route) match(segments []string) (map[string]string, bool) {
	vars := map[string]string{}
	for i, p := range r.pattern {
		if name, ok := strings.CutSuffix(strings.TrimPrefix(p, "{"), "...}"); ok {
			if i >= len(segments) {
				return nil, false
			}
			vars[name] = strings.Join(segments[i:], "/")
			return vars, true
		}
		if i >= len(segments) {
			return nil, false
		}
		if strings.HasPrefix(p, "{") {
			if segments[i] == "" {
				return nil, false
			}
			vars[strings.Trim(p, "{}")] = segments[i]
			continue
		}
		if p != segments[i] {
			return nil, false
		}
	}
	return vars, len(segments) == len(r.pattern)
}

// find looks a call up in the table.
func (s *Server) find(method, path string) (*route, map[string]string) {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	for i := range s.routes {
		r := &s.routes[i]
		if r.method != method {
			continue
		}
		if vars, ok := r.match(segments); ok {
			return r, vars
		}
	}
	return nil, nil
}

// allRoutes is the table of everything the simulator can do.
func allRoutes() []route {
	return slices.Concat(accessRoutes(), clusterRoutes(), nodeRoutes(), taskRoutes(),
		qemuRoutes(), storageRoutes(), poolRoutes(), networkRoutes(), createRoutes(), snapshotRoutes(), morePowerRoutes(),
		cloudInitRoutes(), userRoutes(), readRoutes())
}

func isWrite(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodDelete
}

func (c *call) param(name string) string { return c.params[name] }

// words is a parameter that may be given more than once.
func (c *call) words(name string) []string {
	if w := c.lists[name]; len(w) > 0 {
		return w
	}
	return []string{c.params[name]}
}

func (c *call) has(name string) bool {
	_, ok := c.params[name]
	return ok
}

// flag reads a boolean parameter, checked by the schema before.
func (c *call) flag(name string) bool { return truthy(c.params[name]) }

func (c *call) num(name string) int {
	n, _ := strconv.Atoi(c.params[name])
	return n
}

func truthy(v string) bool {
	switch strings.ToLower(v) {
	case "1", "on", "yes", "true":
		return true
	default:
		return false
	}
}
