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

// kind is the type of a parameter.
type kind string

const (
	kindText    kind = "String"
	kindNumber  kind = "Integer"
	kindBoolean kind = "Boolean"
	kindTexts   kind = "Array"
	kindHash    kind = "Hash"
)

// param describes one parameter of a call.
type param struct {
	kind     kind
	required bool
	values   []string // allowed values of a text, or of the items of a list
}

type params map[string]param

func (p params) with(more params) params {
	out := maps.Clone(p)
	maps.Copy(out, more)
	return out
}

// readParams reads the query and the body into c.values. An unknown name is a violation, although
// GitLab ignores it. Like GitLab, it rejects an invalid value. The lock is held.
func (s *Server) readParams(c *call, ep endpoint) *response {
	c.values = map[string]any{}
	if invalid := s.readQuery(c, ep.params); invalid != nil {
		return invalid
	}
	if len(c.body) > 0 && !ep.isRaw {
		if invalid := s.readBody(c, ep.params); invalid != nil {
			return invalid
		}
	}
	for name, p := range ep.params {
		if _, exists := c.values[name]; p.required && !exists {
			s.addViolation("request", c.r.Method, c.r.URL.Path, fmt.Errorf("%s is missing", name))
			out := newParamError("%s is missing", name)
			return &out
		}
	}
	return nil
}

func (s *Server) readQuery(c *call, specs params) *response {
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		s.addViolation("request", c.r.Method, c.r.URL.Path, err)
	}
	return s.readValues(c, query, specs)
}

// readForm reads a body that is a URL-encoded or a multipart form.
func (s *Server) readForm(c *call, specs params) *response {
	form := c.r.Clone(c.r.Context())
	form.Body = io.NopCloser(bytes.NewReader(c.body))
	if err := form.ParseMultipartForm(maxBody); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		s.addViolation("request", c.r.Method, c.r.URL.Path, err)
		out := newParamError("the form cannot be read")
		return &out
	}
	return s.readValues(c, form.PostForm, specs)
}

// readValues reads the parameters of a query or a form.
func (s *Server) readValues(c *call, query url.Values, specs params) *response {
	for name, values := range query {
		name, isList := strings.CutSuffix(name, "[]")
		p, found := specs[name]
		switch {
		case !found:
			s.addViolation("request", c.r.Method, c.r.URL.Path, fmt.Errorf("unknown parameter %s", name))
			continue
		case p.kind == kindTexts && !isList:
			values = strings.Split(values[0], ",")
		}
		value, isValid := p.parseQuery(values)
		if !isValid {
			return s.newInvalidParam(c, name, p)
		}
		c.values[name] = value
	}
	return nil
}

func (p param) parseQuery(values []string) (any, bool) {
	switch p.kind {
	case kindNumber:
		n, err := strconv.ParseInt(values[0], 10, 64)
		return n, err == nil
	case kindBoolean:
		word := strings.ToLower(values[0])
		isTrue := slices.Contains([]string{"1", "on", "t", "true", "y", "yes"}, word)
		return isTrue, isTrue || slices.Contains([]string{"0", "off", "f", "false", "n", "no"}, word)
	case kindTexts:
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

func (s *Server) newInvalidParam(c *call, name string, p param) *response {
	message := name + " is invalid"
	if len(p.values) > 0 {
		message = name + " does not have a valid value"
	}
	s.addViolation("request", c.r.Method, c.r.URL.Path, errors.New(message))
	out := newParamError("%s", message)
	return &out
}

func (s *Server) readBody(c *call, specs params) *response {
	media, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if media == "application/x-www-form-urlencoded" || media == "multipart/form-data" {
		return s.readForm(c, specs)
	}
	if media != "application/json" {
		s.addViolation("request", c.r.Method, c.r.URL.Path, fmt.Errorf("content type %q", media))
		return &response{status: http.StatusUnsupportedMediaType, body: map[string]any{
			"error": fmt.Sprintf("The provided content-type '%s' is not supported.", media),
		}}
	}
	var body map[string]any
	if err := json.Unmarshal(c.body, &body); err != nil {
		s.addViolation("request", c.r.Method, c.r.URL.Path, err)
		out := newParamError("Problems parsing JSON")
		return &out
	}
	for name, value := range body {
		p, found := specs[name]
		if !found {
			s.addViolation("request", c.r.Method, c.r.URL.Path, fmt.Errorf("unknown parameter %s", name))
			continue
		}
		if value == nil {
			continue
		}
		read, isValid := p.parseJSON(value)
		if !isValid {
			return s.newInvalidParam(c, name, p)
		}
		c.values[name] = read
	}
	return nil
}

// parseJSON converts a value of a JSON body. GitLab accepts numbers, booleans and lists as text,
// and numbers and booleans for text.
func (p param) parseJSON(value any) (any, bool) {
	switch plain := value.(type) {
	case float64, bool:
		if p.kind == kindText {
			value = fmt.Sprint(plain)
		}
	}
	if str, isText := value.(string); isText && p.kind != kindHash {
		if p.kind == kindTexts {
			return p.parseQuery(strings.Split(str, ","))
		}
		return p.parseQuery([]string{str})
	}
	switch p.kind {
	case kindNumber:
		n, isValid := value.(float64)
		return int64(n), isValid && n == float64(int64(n))
	case kindBoolean:
		b, isValid := value.(bool)
		return b, isValid
	case kindTexts:
		list, isValid := value.([]any)
		out := make([]string, 0, len(list))
		for _, item := range list {
			element, isText := item.(string)
			isValid = isValid && isText
			out = append(out, element)
		}
		return out, isValid && p.allows(out...)
	case kindHash:
		h, isValid := value.(map[string]any)
		return h, isValid
	default:
		t, isValid := value.(string)
		return t, isValid && p.allows(t)
	}
}

func (c *call) text(name string) string { out, _ := c.values[name].(string); return out }

func (c *call) list(name string) []string { out, _ := c.values[name].([]string); return out }

func (c *call) flag(name string, fallback bool) bool {
	if value, exists := c.values[name].(bool); exists {
		return value
	}
	return fallback
}

func (c *call) number(name string, fallback int64) int64 {
	if value, exists := c.values[name].(int64); exists {
		return value
	}
	return fallback
}

// pathID returns the numeric path parameter, or 0 if it is not a number.
func (c *call) pathID(name string) int64 {
	id, err := strconv.ParseInt(c.r.PathValue(name), 10, 64)
	if err != nil {
		return 0
	}
	return id
}
