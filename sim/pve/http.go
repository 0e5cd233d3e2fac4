// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	apiPrefix = "/api2/json"
	// maxPost is the largest body of a POST that is no upload (512 KiB since
	// libpve-http-server-perl 5.1).
	maxPost = 512 << 10
	// workerWait is how long the node-to-node proxy waits for an answer.
	workerWait = 30 * time.Second
)

// counted is a page of a list, and how long the whole list is.
type counted struct {
	rows  []map[string]any
	total int
}

// upload is the file part of a multipart request.
type upload struct {
	filename string
	data     []byte
}

// ServeHTTP answers one API call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A real cluster finishes what it began even if the client has gone.
	c := &call{ctx: s.ctx, method: r.Method, path: r.URL.Path, node: s.entry()}
	cut := false
	data, err := s.serve(c, r, &cut)
	drain(r.Body)
	s.callDone(c, err)
	if cut {
		cutConnection(w)
		return
	}
	s.reply(w, c, data, err)
}

// serve takes a call through the stages of pveproxy: who, what, where, may it,
// are its parameters right, do it.
func (s *Server) serve(c *call, r *http.Request, cut *bool) (any, error) {
	rel, ok := strings.CutPrefix(c.path, apiPrefix)
	if !ok {
		s.violate(c, "no such file")
		return nil, &apiError{status: http.StatusNotFound, reason: "no such file '" + c.path + "'"}
	}
	c.path = rel
	c.route, c.vars = s.find(c.method, rel)
	s.resolve(c)
	s.callStarts(c)
	if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}, c.method) {
		s.violate(c, "unknown method")
		return nil, bare(&apiError{status: http.StatusNotImplemented, reason: "method '" + c.method + "' not available"})
	}
	if err := s.authenticate(c, r); err != nil {
		s.sleep(c.ctx, s.model.Delays.LoginFailure)
		return nil, bare(err)
	}
	if err := s.mayUpload(c); err != nil {
		return nil, bare(err)
	}
	if err := readParams(c, r); err != nil {
		return nil, err
	}
	if c.route == nil {
		s.violate(c, "unknown call")
		return nil, noMethod(c.method, rel)
	}
	if !s.sleep(c.ctx, s.model.Delays.Call) {
		return nil, errGone
	}
	release, err := s.worker(c)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.faultsBefore(c); err != nil {
		return nil, err
	}
	data, err := s.perform(c)
	*cut = struck(c.faults, FaultCutConnection) != nil
	if f := struck(c.faults, FaultProxyTimeout); f != nil {
		s.sleep(c.ctx, f.Delay)
		return nil, &apiError{status: statusProxyTimeout, reason: f.reasonOr("Connection timed out")}
	}
	return data, err
}

var errGone = errors.New("client went away")

// resolve finds the node and VM a call is about.
func (s *Server) resolve(c *call) {
	if c.route == nil {
		return
	}
	if n := c.vars["node"]; n != "" {
		if n == "localhost" {
			n = s.entry()
			c.vars["node"] = n
		}
		c.node = n
	}
	c.vmid, _ = strconv.Atoi(c.vars["vmid"])
}

// worker waits for one of the node's API workers.
func (s *Server) worker(c *call) (func(), error) {
	s.mu.Lock()
	n := s.nodes[c.node]
	if n != nil && c.upload != nil { // it works on uploads itself
		n = s.nodes[s.entryNode()]
	}
	s.mu.Unlock()
	if n == nil {
		return nil, dief("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known",
			c.node, c.node)
	}
	if err := s.unreachable(c, n); err != nil {
		return nil, err
	}
	limit := s.model.Limits.WorkersPerNode
	if limit <= 0 {
		return func() {}, nil
	}
	release, err := s.locks.acquire(c.ctx, "worker/"+n.Name, limit, workerWait)
	if errors.Is(err, errLockTimeout) {
		return nil, &apiError{status: statusProxyTimeout, reason: "Connection timed out"}
	}
	return release, err
}

// mayUpload checks an upload's permission where pveproxy does: before it reads
// the file.
func (s *Server) mayUpload(c *call) error {
	if c.route == nil || c.method != http.MethodPost || !strings.HasSuffix(c.path, "/upload") || c.auth.isRoot() {
		return nil
	}
	return s.may(c.auth, "/storage/"+c.vars["storage"], "Datastore.AllocateTemplate")
}

// perform checks permission and parameters and runs the handler.
func (s *Server) perform(c *call) (any, error) {
	for k, v := range c.vars { // may be said twice, but the same
		if p, ok := c.params[k]; ok && p != v {
			return nil, badParam(k, "duplicate parameter (already defined in URI) with conflicting values!")
		}
		delete(c.params, k)
	}
	if c.route.perm != nil && !c.auth.isRoot() { // root is not asked
		if err := c.route.perm(s, c); err != nil {
			return nil, err
		}
	}
	if fields := (schema{"vmid": vmidParam()}).validate(only(c.vars, "vmid")); len(fields) > 0 {
		return nil, badParams(fields)
	}
	if !c.route.freeParams {
		if fields := c.route.params.validate(c.params); len(fields) > 0 {
			return nil, badParams(fields)
		}
	}
	if err := s.noQuorum(c); err != nil {
		return nil, err
	}
	return c.route.handle(s, c)
}

func only(m map[string]string, key string) map[string]string {
	if v, ok := m[key]; ok {
		return map[string]string{key: v}
	}
	return nil
}

// readParams collects the parameters of query and body.
func readParams(c *call, r *http.Request) error {
	c.params, c.lists = map[string]string{}, map[string][]string{}
	for k, v := range r.URL.Query() {
		c.params[k] = v[len(v)-1]
	}
	if !isWrite(c.method) || c.method == http.MethodDelete {
		if r.ContentLength > 0 || len(r.TransferEncoding) > 0 {
			return &apiError{
				status: http.StatusNotImplemented, form: bodyText,
				reason: fmt.Sprintf("Unexpected content for method '%s'", c.method),
			}
		}
		return nil
	}
	ctype, args, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.ContentLength > 0 {
		return dief("no content type")
	}
	switch {
	case ctype == "multipart/form-data":
		return readMultipart(c, r, args["boundary"])
	case r.ContentLength > maxPost:
		return &apiError{status: http.StatusNotImplemented, reason: "for data too large"}
	case ctype == "application/json":
		return readJSON(c, r.Body)
	default:
		return readForm(c, r.Body)
	}
}

func readForm(c *call, body io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(body, maxPost+1))
	if err != nil {
		return errGone
	}
	form, err := url.ParseQuery(string(raw))
	if err != nil {
		return dief("unable to parse form: %s", err)
	}
	for k, v := range form {
		c.params[k], c.lists[k] = v[len(v)-1], v
	}
	return nil
}

func readJSON(c *call, body io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(body, maxPost+1))
	if err != nil {
		return errGone
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var obj map[string]any
	if err := dec.Decode(&obj); err != nil {
		return dief("malformed JSON string: %s", err)
	}
	for k, v := range obj {
		if v == nil {
			continue
		}
		if words, ok := stringList(v); ok && c.route != nil && c.route.params[k].list {
			c.lists[k], c.params[k] = words, strings.Join(words, " ")
			continue
		}
		text, ok := stringify(v)
		if !ok {
			return badParam(k, "type check ('string') failed - got %T", v)
		}
		c.params[k] = text
	}
	return nil
}

// readMultipart reads an upload: fields first, the file part "filename" last.
func readMultipart(c *call, r *http.Request, boundary string) error {
	mr := multipart.NewReader(r.Body, boundary)
	for {
		part, err := mr.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return dief("upload failed: %s", err)
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return errGone
		}
		if c.upload != nil {
			return dief("upload failed: the file must be the last part")
		}
		if part.FormName() == "filename" {
			c.upload = &upload{filename: part.FileName(), data: data}
			c.params["filename"] = part.FileName()
			continue
		}
		c.params[part.FormName()] = string(data)
	}
}

// reply writes the answer. Errors carry their text in the status line, which
// net/http cannot do, so their connection is taken over.
func (s *Server) reply(w http.ResponseWriter, c *call, data any, err error) {
	if errors.Is(err, errGone) || c.ctx.Err() != nil {
		cutConnection(w)
		return
	}
	if err == nil {
		out := map[string]any{"data": data}
		if rows, ok := data.(counted); ok {
			out = map[string]any{"data": rows.rows, "total": rows.total}
		}
		body, merr := json.Marshal(out)
		if merr == nil {
			w.Header().Set("Content-Type", "application/json;charset=UTF-8")
			if c.upload != nil {
				w.Header().Set("Connection", "close")
			}
			_, _ = w.Write(append(body, '\n'))
			return
		}
		err = dief("encode reply: %s", merr)
	}
	var e *apiError
	if !errors.As(err, &e) {
		e = &apiError{status: http.StatusInternalServerError, reason: err.Error()}
	}
	writeError(w, e)
}

func writeError(w http.ResponseWriter, e *apiError) {
	raw, ctype := e.body()
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, string(raw), e.status) // in-memory recorders cannot be taken over
		return
	}
	defer func() { _ = conn.Close() }()
	reason := strings.NewReplacer("\r", " ", "\n", " ").Replace(e.reason)
	_, _ = fmt.Fprintf(buf, "HTTP/1.1 %d %s\r\nCache-Control: max-age=0\r\nConnection: close\r\n"+
		"Server: pve-api-daemon/3.0\r\n%sContent-Length: %d\r\n\r\n%s",
		e.status, reason, ctype, len(raw), raw)
	_ = buf.Flush()
}

// body is what an error's answer holds, and the header that says so.
func (e *apiError) body() (raw []byte, ctype string) {
	body := map[string]any{"data": nil, "message": e.reason + "\n"}
	switch e.form {
	case bodyEmpty:
		return nil, ""
	case bodyText:
		return []byte(e.reason), ""
	case bodyPlain:
		body["message"] = e.reason
	case bodyMessage:
	}
	if len(e.fields) > 0 {
		body["errors"] = e.fields
	}
	raw, _ = json.Marshal(body) //nolint:errchkjson // strings only
	return raw, "Content-Type: application/json;charset=UTF-8\r\n"
}

// cutConnection closes the connection without an answer.
func cutConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}
