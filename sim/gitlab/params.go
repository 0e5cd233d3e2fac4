// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Kinds of parameters.
type kind string

const (
	text    kind = "String"
	number  kind = "Integer"
	boolean kind = "Boolean"
	texts   kind = "Array"
	hash    kind = "Hash"
)

// param is one parameter of a call.
type param struct {
	kind     kind
	required bool
	values   []string // of a text, or of the items of texts
}

type params map[string]param

func (p params) and(more params) params {
	out := maps.Clone(p)
	maps.Copy(out, more)
	return out
}

// readParams reads query and body into c.given. An unknown name is a breach, though GitLab
// lets it pass; a wrong value is refused, as GitLab does. The lock is held.
func (s *Server) readParams(c *call, end endpoint) *reply {
	c.given = map[string]any{}
	if broken := s.readQuery(c, end.params); broken != nil {
		return broken
	}
	if len(c.body) > 0 && !end.raw {
		if broken := s.readBody(c, end.params); broken != nil {
			return broken
		}
	}
	for name, p := range end.params {
		if _, given := c.given[name]; p.required && !given {
			s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("%s is missing", name))
			out := wrong("%s is missing", name)
			return &out
		}
	}
	return nil
}

func (s *Server) readQuery(c *call, known params) *reply {
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		s.violate("request", c.r.Method, c.r.URL.Path, err)
	}
	return s.readValues(c, query, known)
}

// readForm reads a body that is a form, of either kind.
func (s *Server) readForm(c *call, known params) *reply {
	form := c.r.Clone(c.r.Context())
	form.Body = io.NopCloser(bytes.NewReader(c.body))
	if err := form.ParseMultipartForm(maxBody); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		s.violate("request", c.r.Method, c.r.URL.Path, err)
		out := wrong("the form cannot be read")
		return &out
	}
	return s.readValues(c, form.PostForm, known)
}

// readValues reads parameters as a query or a form has them.
func (s *Server) readValues(c *call, query url.Values, known params) *reply {
	for name, values := range query {
		name, list := strings.CutSuffix(name, "[]")
		p, found := known[name]
		switch {
		case !found:
			s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("unknown parameter %s", name))
			continue
		case p.kind == texts && !list:
			values = strings.Split(values[0], ",")
		}
		value, good := p.fromQuery(values)
		if !good {
			return s.invalid(c, name, p)
		}
		c.given[name] = value
	}
	return nil
}

func (p param) fromQuery(values []string) (any, bool) {
	switch p.kind {
	case number:
		n, err := strconv.ParseInt(values[0], 10, 64)
		return n, err == nil
	case boolean:
		word := strings.ToLower(values[0])
		yes := slices.Contains([]string{"1", "on", "t", "true", "y", "yes"}, word)
		return yes, yes || slices.Contains([]string{"0", "off", "f", "false", "n", "no"}, word)
	case texts:
		return values, p.allows(values...)
	default:
		return values[0], p.allows(values[0])
	}
}

func (p param) allows(values ...string) bool {
	for _, value := range values {
		if len(p.values) > 0 && !slices.Contains(p.values, value) {
			return false
		}
	}
	return true
}

func (s *Server) invalid(c *call, name string, p param) *reply {
	message := name + " is invalid"
	if len(p.values) > 0 {
		message = name + " does not have a valid value"
	}
	s.violate("request", c.r.Method, c.r.URL.Path, errors.New(message))
	out := wrong("%s", message)
	return &out
}

func (s *Server) readBody(c *call, known params) *reply {
	media, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if media == "application/x-www-form-urlencoded" || media == "multipart/form-data" {
		return s.readForm(c, known)
	}
	if media != "application/json" {
		s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("content type %q", media))
		return &reply{status: http.StatusUnsupportedMediaType, body: map[string]any{
			"error": fmt.Sprintf("The provided content-type '%s' is not supported.", media),
		}}
	}
	var body map[string]any
	if err := json.Unmarshal(c.body, &body); err != nil {
		s.violate("request", c.r.Method, c.r.URL.Path, err)
		out := wrong("Problems parsing JSON")
		return &out
	}
	for name, value := range body {
		p, found := known[name]
		if !found {
			s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("unknown parameter %s", name))
			continue
		}
		if value == nil {
			continue
		}
		read, good := p.fromJSON(value)
		if !good {
			return s.invalid(c, name, p)
		}
		c.given[name] = read
	}
	return nil
}

// fromJSON reads a value of a body. GitLab takes numbers, flags and lists as text, and
// numbers and flags for text.
func (p param) fromJSON(value any) (any, bool) {
	switch plain := value.(type) {
	case float64, bool:
		if p.kind == text {
			value = fmt.Sprint(plain)
		}
	}
	if written, is := value.(string); is && p.kind != hash {
		if p.kind == texts {
			return p.fromQuery(strings.Split(written, ","))
		}
		return p.fromQuery([]string{written})
	}
	switch p.kind {
	case number:
		n, good := value.(float64)
		return int64(n), good && n == float64(int64(n))
	case boolean:
		b, good := value.(bool)
		return b, good
	case texts:
		list, good := value.([]any)
		out := make([]string, 0, len(list))
		for _, item := range list {
			one, isText := item.(string)
			good = good && isText
			out = append(out, one)
		}
		return out, good && p.allows(out...)
	case hash:
		h, good := value.(map[string]any)
		return h, good
	default:
		t, good := value.(string)
		return t, good && p.allows(t)
	}
}

func (c *call) text(name string) string { out, _ := c.given[name].(string); return out }

func (c *call) list(name string) []string { out, _ := c.given[name].([]string); return out }

func (c *call) flag(name string, unset bool) bool {
	if value, given := c.given[name].(bool); given {
		return value
	}
	return unset
}

func (c *call) number(name string, unset int64) int64 {
	if value, given := c.given[name].(int64); given {
		return value
	}
	return unset
}

// pathID reads a numeric part of the path.
func (c *call) pathID(name string) int64 {
	id, err := strconv.ParseInt(c.r.PathValue(name), 10, 64)
	if err != nil {
		return 0
	}
	return id
}
