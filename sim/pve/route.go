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

// handler handles one call. The result becomes the field "data" of the response.
type handler func(s *Server, c *call) (any, error)

// route is one method of the API on one path.
type route struct {
	method     string
	pattern    []string // segments; {name} binds one segment, {name...} binds the rest
	class      Class
	perm       permCheck
	params     schema
	handle     handler
	startsTask bool // starts a task
	// freeParams is true if the handler validates the parameters itself.
	freeParams bool
}

// call is one request that the server handles.
type call struct {
	ctx    context.Context //nolint:containedctx // the server's context, because calls outlive their clients
	id     int64
	method string
	path   string
	format string // of the response
	vars   map[string]string
	params map[string]string
	lists  map[string][]string
	upload *upload
	// undefined are the parameters whose value in JSON is null.
	undefined []string
	auth      identity
	node      string // the node that handles the call
	vmid      int
	route     *route
	faults    []*faultRule // the faults that apply to this call later
	upid      string
	task      *task // the task that the call has started
}

func newRoute(method, path string, class Class, perm permCheck, params schema, h handler) route {
	return route{
		method: method, pattern: strings.Split(strings.TrimPrefix(path, "/"), "/"),
		class: class, perm: perm, params: params, handle: h,
	}
}

// asTask marks a method that returns a UPID.
func (r route) asTask() route {
	r.startsTask = true
	return r
}

// match returns the variables of the pattern and false if the segments do not match.
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
			if segments[i] == "" || strings.Contains(segments[i], " ") {
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

// findRoute returns the route of a call and the variables of its path, or nil if there is none.
func (s *Server) findRoute(method, path string) (*route, map[string]string) {
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

// allRoutes returns all calls that the simulator implements.
func allRoutes() []route {
	return slices.Concat(accessRoutes(), clusterRoutes(), nodeRoutes(), taskRoutes(),
		qemuRoutes(), storageRoutes(), poolRoutes(), networkRoutes(), createRoutes(), snapshotRoutes(), extraPowerRoutes(),
		cloudInitRoutes(), userRoutes(), tokenRoutes(), groupRoutes(), readRoutes(), exploreRoutes(), storageConfigRoutes(), haRoutes(),
		consoleRoutes(), migrateRoutes(), backupRoutes(), nodeReadRoutes(), pciRoutes())
}

func isWrite(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodDelete
}

func (c *call) param(name string) string { return c.params[name] }

// listParam returns a parameter that can occur several times.
func (c *call) listParam(name string) []string {
	if w := c.lists[name]; len(w) > 0 {
		return w
	}
	return []string{c.params[name]}
}

func (c *call) hasParam(name string) bool {
	_, ok := c.params[name]
	return ok
}

// boolParam returns a boolean parameter, which the schema has already validated.
func (c *call) boolParam(name string) bool { return isTrue(c.params[name]) }

func (c *call) intParam(name string) int {
	n, _ := strconv.Atoi(c.params[name])
	return n
}

func isTrue(v string) bool {
	switch strings.ToLower(v) {
	case "1", "on", "yes", "true":
		return true
	default:
		return false
	}
}
