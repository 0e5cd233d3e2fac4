// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package recordings_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

const differencesFile = "testdata/differences.txt"

var showAll = flag.Bool("show", false, "print each difference, also those that are on the list")

// TestRecordings sends the recorded requests to the simulator and compares the responses. An exchange that
// differs must be in differences.txt, and one that does not must not.
func TestRecordings(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob(filepath.Join(recordingsDir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}

	known := readDifferences(t)
	recordings := map[string][]exchange{}
	unknown := maps.Clone(known)

	for _, file := range files {
		name := filepath.Base(file)
		recordings[name] = readRecording(t, name)

		for _, e := range recordings[name] {
			delete(unknown, e.ID)
		}
	}

	for id := range unknown {
		t.Errorf("%s: no exchange has the ID %s", differencesFile, id)
	}

	for name, exchanges := range recordings {
		t.Run(strings.TrimSuffix(name, ".jsonl"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { replayAll(t, newReplayer(t, name), exchanges, known) })
		})
	}
}

// replayAll sends all requests of a file and compares the responses.
func replayAll(t *testing.T, r *replayer, exchanges []exchange, known map[string]struct{}) {
	t.Helper()

	alike, total, alikeOperator, totalOperator := 0, 0, 0, 0

	for _, e := range exchanges {
		if e.Event != "" {
			r.applyEvent(e)

			continue
		}

		differences := r.replay(e)
		total++

		if e.As == "op" {
			totalOperator++
		}

		if len(differences) == 0 {
			alike++

			if e.As == "op" {
				alikeOperator++
			}
		}

		request := fmt.Sprintf("%s [%s %s %s]", e.ID, e.As, e.Method, e.Path)
		text := strings.Join(differences, "\n   ")

		if *showAll && len(differences) > 0 {
			t.Logf("%s\n   %s", request, text)
		}

		switch _, isKnown := known[e.ID]; {
		case isKnown && len(differences) == 0:
			t.Errorf("%s: the simulator responds as Proxmox VE does: delete the line in %s", e.ID, differencesFile)
		case !isKnown && len(differences) > 0:
			t.Errorf("%s: the simulator responds differently:\n   %s", request, text)
		}
	}

	t.Logf("%d of %d alike (%.1f%%); with the operator's token %d of %d", alike, total,
		100*float64(alike)/float64(total), alikeOperator, totalOperator)
}

// readDifferences returns the IDs in the list of known differences. Lines that begin with # are the reasons.
func readDifferences(t *testing.T) map[string]struct{} {
	t.Helper()

	text, err := os.ReadFile(differencesFile)
	if err != nil {
		t.Fatal(err)
	}

	out := map[string]struct{}{}
	reason := ""

	for line := range strings.Lines(string(text)) {
		switch line = strings.TrimSpace(line); {
		case line == "":
			reason = ""
		case strings.HasPrefix(line, "#"):
			reason = line
		case reason == "":
			t.Errorf("%s: %s has no reason above it", differencesFile, line)
		default:
			out[line] = struct{}{}
		}
	}

	return out
}

// replayer sends the requests of one file to one simulated cluster. It runs in a bubble of testing/synctest, so that time
// passes only while the simulator waits, and a slow computer changes no uptime and no report of a node.
type replayer struct {
	t       *testing.T
	server  *pve.Server
	client  *http.Client
	dial    dialer
	callers map[string]http.Header
	// scenario is that of the last event.
	scenario string
	// digest is that of the configuration that was read last.
	digest string
	// upids maps the placeholder of a task to the ID that the simulator gave last.
	upids map[string]string
}

func newReplayer(t *testing.T, file string) *replayer {
	t.Helper()

	time.Sleep(time.Until(recordedAt)) // a bubble begins in the year 2000

	server, err := pve.New(newModel(file))
	if err != nil {
		t.Fatal(err)
	}

	dial := make(dialer)
	if err := server.Start(pve.ListenOptions{Listener: dial}); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}

		time.Sleep(time.Minute) // TLS connections wait some seconds for the other side before they close
	})

	client := server.HTTPClient()
	client.Timeout = time.Hour // of the bubble's time
	client.Transport.(*http.Transport).DialContext = dial.dialContext
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(client.CloseIdleConnections)

	r := &replayer{t: t, server: server, client: client, dial: dial, upids: map[string]string{}}
	r.callers = newCallers(r)

	for _, e := range presets[file] {
		if status, reason, body, _ := r.send(e); status != http.StatusOK {
			t.Fatalf("prepare %s %s: %d %s %s", e.Method, e.Path, status, reason, body)
		}

		r.waitForTasks()
		time.Sleep(replayStep)
	}

	return r
}

// waitForTasks waits until no task runs.
func (r *replayer) waitForTasks() {
	for range 200 {
		_, _, body, err := r.send(exchange{As: "root", Method: http.MethodGet, Path: "/nodes/pve1/tasks", Query: map[string]any{"source": "active"}})
		if err != nil {
			r.t.Fatal(err)
		}

		if !strings.Contains(string(body), "UPID") {
			return
		}

		time.Sleep(time.Second)
	}

	r.t.Fatal("a task does not end")
}

// replay sends a request and returns the differences from the recorded response.
func (r *replayer) replay(e exchange) []string {
	if e.Method == "" {
		return r.replayRaw(e)
	}

	time.Sleep(replayStep)
	r.waitAsRecorded(e)

	for range 200 {
		differences := r.replayOnce(e)
		if len(differences) > 0 && reportedPath.MatchString(e.Path) && e.Method == http.MethodGet {
			return r.replayStale(e, differences)
		}
		// The recording waited until a task ended before it asked for its status.
		if len(differences) == 0 || !strings.HasSuffix(e.ID, "/task") ||
			!slices.ContainsFunc(differences, func(d string) bool { return strings.Contains(d, `sim "running"`) }) {
			return differences
		}

		time.Sleep(time.Second)
	}

	return []string{"the task does not end"}
}

func (r *replayer) replayOnce(e exchange) []string {
	status, reason, body, err := r.send(e)
	if err != nil {
		if e.Status == 0 {
			return nil
		}

		return []string{"error: " + err.Error()}
	}

	var out []string

	if status != e.Status {
		return []string{fmt.Sprintf("status: real %d %s, sim %d %s", e.Status, e.Reason, status, reason)}
	}

	if !matchText(e.Reason, reason) {
		out = append(out, fmt.Sprintf("reason: real %q, sim %q", e.Reason, reason))
	}

	if e.Body == nil {
		if e.Text != "" && !matchText(e.Text, string(body)) {
			out = append(out, fmt.Sprintf("text: real %q, sim %q", e.Text, body))
		}

		return out
	}

	want, err := decodeJSON(e.Body)
	if err != nil {
		r.t.Fatalf("%s: %v", e.ID, err)
	}

	got, err := decodeJSON(body)
	if err != nil {
		return append(out, fmt.Sprintf("body: real %s, sim %q", short(want), body))
	}

	r.learn(e, want, got)

	if strings.HasSuffix(e.Path, "/tasks") { // its total counts the tasks of what was recorded before
		for _, list := range []any{want, got} {
			if fields, ok := list.(map[string]any); ok {
				delete(fields, "total")
			}
		}
	}

	compare("", want, got, &out)

	return out
}

// learn remembers the ID of a task that a call has started, and the secret of the token u1@pve!use.
func (r *replayer) learn(e exchange, want, got any) {
	a, _ := want.(map[string]any)
	b, _ := got.(map[string]any)

	if token, ok := b["data"].(map[string]any); ok && token["full-tokenid"] == "u1@pve!use" && e.Method == http.MethodPost {
		r.callers["u1use"] = tokenHeader("u1@pve!use", fmt.Sprint(token["value"]))
	}

	if config, ok := b["data"].(map[string]any); ok && strings.HasSuffix(e.Path, "/config") {
		r.digest, _ = config["digest"].(string)
	}

	name, _ := a["data"].(string)

	if id, ok := b["data"].(string); ok && strings.HasPrefix(name, "<UPID:") {
		if e.ID != "tasks/running: second shutdown" { // the first is what was stopped
			r.upids[name] = id
		}
	}
}

var (
	escapedUPID       = regexp.MustCompile(`UPID%3A[^/]*`)
	upidPlaceholder   = regexp.MustCompile(`<UPID:[^<>]*>`)
	repeatPlaceholder = regexp.MustCompile(`<repeat:[^<>]*>`)
)

// fill replaces the placeholders of a request.
func (r *replayer) fill(text string) string {
	text = escapedUPID.ReplaceAllStringFunc(text, func(escaped string) string {
		id, _ := url.PathUnescape(escaped)
		parts := strings.Split(id, ":")

		return url.PathEscape(r.upids["<UPID:"+parts[1]+":"+strings.Join(parts[5:8], ":")+">"])
	})
	text = upidPlaceholder.ReplaceAllStringFunc(text, func(p string) string {
		if id := r.upids[p]; id != "" {
			return id
		}

		// a task that never was
		parts := strings.SplitN(strings.Trim(p, "<>"), ":", 5)
		if len(parts) < 5 {
			return p
		}

		return "UPID:" + parts[1] + ":00000001:00000001:00000001:" + strings.Join(parts[2:], ":") + ":"
	})
	text = strings.NewReplacer("<str:secret of op>", secretOf("op"), "<str:digest>", r.digest,
		"<str:ticket>", r.ticket(), "<str:uuid>", "11111111-2222-4333-8444-555555555555").Replace(text)

	return repeatPlaceholder.ReplaceAllStringFunc(text, func(p string) string {
		char, count, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(p, "<repeat:"), ">"), ":")

		var n int

		_, _ = fmt.Sscan(count, &n)

		return strings.Repeat(char, n)
	})
}

// ticket returns that of root.
func (r *replayer) ticket() string {
	return strings.TrimPrefix(r.callers["rootcookie"].Get("Cookie"), "PVEAuthCookie=")
}

// values returns parameters. Those of the recording are text or lists of text.
func (r *replayer) values(params map[string]any) url.Values {
	out := url.Values{}

	for key, value := range params {
		switch value := value.(type) {
		case []any:
			for _, v := range value {
				out.Add(key, r.fill(fmt.Sprint(v)))
			}
		default:
			out.Set(key, r.fill(fmt.Sprint(value)))
		}
	}

	return out
}

func (r *replayer) send(e exchange) (status int, reason string, body []byte, err error) {
	format := e.Format
	if format == "" {
		format = "json"
	}

	if strings.HasSuffix(e.ID, "digest wrong") {
		defer func(digest string) { r.digest = digest }(r.digest)

		r.digest = strings.Repeat("0", 40)
	}

	target := r.server.URL() + "/api2/" + format + r.fill(e.Path)
	if e.URL != "" {
		target = r.server.URL() + e.URL
	}

	if query := r.values(e.Query).Encode(); query != "" {
		target += "?" + query
	}

	if strings.HasSuffix(e.ID, "expired ticket as password") {
		e.Form = map[string]any{"username": pve.RootUser, "password": "PVE:root@pam:00000001::" + strings.Repeat("x", 43)}
	}

	content, contentType := r.content(e)

	request, err := http.NewRequestWithContext(r.t.Context(), e.Method, strings.ReplaceAll(target, " ", "%20"), content)
	if err != nil {
		return 0, "", nil, err
	}

	maps.Copy(request.Header, r.credential(e))

	switch e.ID {
	case "protocol/long header", "protocol/huge header":
		request.Header.Set("X-Long", strings.Repeat("x", 9000))
	case "protocol/many headers":
		for i := range 100 {
			request.Header.Set("X-Many-"+strconv.Itoa(i), "x")
		}
	}

	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}

	response, err := r.client.Do(request)
	if err != nil {
		return 0, "", nil, err
	}
	defer func() { _ = response.Body.Close() }()

	body, err = io.ReadAll(response.Body)
	_, reason, _ = strings.Cut(response.Status, " ")

	return response.StatusCode, reason, body, err
}

// rawTypes are the content types of the requests whose body was not a form.
var rawTypes = map[string]string{
	"protocol/json broken": "application/json", "protocol/json charset": "application/json;charset=UTF-8",
	"protocol/text body": "text/plain", "protocol/xml body": "application/xml", "protocol/no content type": "",
	"protocol/form charset":      "application/x-www-form-urlencoded; charset=UTF-8",
	"storage/upload no boundary": "multipart/form-data",
}

func (r *replayer) content(e exchange) (io.Reader, string) {
	switch {
	case e.JSON != nil:
		return bytes.NewReader(e.JSON), "application/json"
	case e.Multipart != nil:
		return r.newMultipart(e.Multipart)
	case e.Raw != "":
		contentType, ok := rawTypes[e.ID]
		if !ok {
			contentType = "application/x-www-form-urlencoded"
		}

		return strings.NewReader(r.fill(e.Raw)), contentType
	case e.Form != nil:
		return strings.NewReader(r.values(e.Form).Encode()), "application/x-www-form-urlencoded"
	default:
		return http.NoBody, ""
	}
}

func (r *replayer) newMultipart(parts []part) (io.Reader, string) {
	var out bytes.Buffer

	writer := multipart.NewWriter(&out)
	_ = writer.SetBoundary("XXBOUND")

	for _, p := range parts {
		header := textproto.MIMEHeader{}
		disposition := `form-data; name="` + p.Name + `"`

		if p.Filename != "" {
			disposition += `; filename="` + r.fill(p.Filename) + `"`
		}

		header.Set("Content-Disposition", disposition)

		if p.Type != "" {
			header.Set("Content-Type", p.Type)
		}

		w, _ := writer.CreatePart(header)
		_, _ = io.WriteString(w, p.Data)
		_, _ = w.Write(make([]byte, p.Bytes))
	}

	_ = writer.Close()

	return &out, writer.FormDataContentType()
}

// replayRaw sends the bytes of a request and compares the status line and the body of the response.
func (r *replayer) replayRaw(e exchange) []string {
	plain, err := r.dial.dialContext(r.t.Context(), "", "")
	if err != nil {
		return []string{"connect: " + err.Error()}
	}

	conn := plain

	if e.Error != "" || e.TLS != "" {
		config := &tls.Config{InsecureSkipVerify: true} // #nosec G402 -- the test's own server
		if e.ID == "protocol/raw tls 1.1" {
			config.MinVersion, config.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		}

		conn = tls.Client(plain, config)
	}

	defer func() { _ = conn.Close() }()

	_ = conn.SetDeadline(time.Now().Add(time.Second))

	if _, err := io.WriteString(conn, r.fill(e.Raw)); err != nil && e.Error == "" {
		return []string{"write: " + err.Error()}
	}

	got, _ := io.ReadAll(bufio.NewReader(conn))
	wantLine, gotLine := statusLine(e.Answer), statusLine(string(got))

	if wantLine != gotLine {
		return []string{fmt.Sprintf("status line: real %q, sim %q", wantLine, gotLine)}
	}

	return nil
}

// statusLine returns the first line without the version of HTTP.
func statusLine(response string) string {
	line, _, _ := strings.Cut(response, "\r\n")
	_, line, _ = strings.Cut(line, " ")

	return line
}

// applyEvent does to a node of the simulator what was done to the node of the recording.
func (r *replayer) applyEvent(e exchange) {
	kind := map[string]pve.FaultKind{"hang": pve.FaultNodeHung, "cut": pve.FaultNodeCut}[e.Event]
	if e.Scenario != r.scenario { // each begins with all nodes
		r.server.ClearFaults()
		time.Sleep(replayStep)
	}

	r.scenario = e.Scenario

	if kind == "" { // wake, join
		r.server.ClearFaults()

		return
	}

	r.server.AddFault(pve.Fault{Kind: kind, Node: e.Node})
}
