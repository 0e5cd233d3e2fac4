// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"crypto/subtle"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	pingPath   = "/api/actions/ping.v1.PingService/"
	runnerPath = "/api/actions/runner.v1.RunnerService/"
)

// Error codes of the Connect protocol.
const (
	codeUnauthenticated = "unauthenticated"
	codeUnknown         = "unknown"
	codeUnavailable     = "unavailable"
	codeInvalid         = "invalid_argument"
)

func newRPCError(code, message string) response {
	status := map[string]int{
		codeUnauthenticated: http.StatusUnauthorized, codeUnavailable: http.StatusServiceUnavailable,
		codeInvalid: http.StatusBadRequest,
	}[code]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	return response{status: status, body: map[string]string{"code": code, "message": message}}
}

// number is an int64. The Connect protocol writes it as a string, and accepts a string or a number.
type number int64

// UnmarshalJSON decodes a string or a number.
func (n *number) UnmarshalJSON(text []byte) error {
	value, err := strconv.ParseInt(string(slices.DeleteFunc(slices.Clone(text), func(c byte) bool { return c == '"' })), 10, 64)
	*n = number(value)
	return err
}

// message has the fields of all requests of runners.
type message struct {
	Data         string   `json:"data"`
	Name         string   `json:"name"`
	Token        string   `json:"token"`
	Version      string   `json:"version"`
	Labels       []string `json:"labels"`
	Capabilities []string `json:"capabilities"`
	Ephemeral    bool     `json:"ephemeral"`
	TasksVersion number   `json:"tasksVersion"`
	Handle       string   `json:"handle"`
	State        struct {
		ID        number    `json:"id"`
		Result    string    `json:"result"`
		StartedAt time.Time `json:"startedAt"`
		StoppedAt time.Time `json:"stoppedAt"`
		Steps     []any     `json:"steps"`
	} `json:"state"`
	Outputs map[string]string `json:"outputs"`
	TaskID  number            `json:"taskId"`
	Index   number            `json:"index"`
	Rows    []struct {
		Time    time.Time `json:"time"`
		Content string    `json:"content"`
	} `json:"rows"`
	NoMore bool `json:"noMore"`
}

// rpc is one call of a runner. runner is nil if the call needs no registration.
type rpc struct {
	r       *http.Request
	runner  *runner
	request message
}

func rpcCalls() map[string]func(*Server, *rpc) response {
	return map[string]func(*Server, *rpc) response{
		pingPath + "Ping":              (*Server).ping,
		runnerPath + "Register":        (*Server).registerRunner,
		runnerPath + "Declare":         (*Server).declareRunner,
		runnerPath + "FetchTask":       (*Server).fetchTask,
		runnerPath + "FetchSingleTask": (*Server).fetchTask,
		runnerPath + "UpdateTask":      (*Server).updateTask,
		runnerPath + "UpdateLog":       (*Server).updateLog,
	}
}

// machineCalls returns the calls that machines make. In HyperFleet, the operator registers runners.
func machineCalls() []string {
	var out []string
	for path := range rpcCalls() {
		if path != runnerPath+"Register" {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

func (s *Server) mountRPC(mux *http.ServeMux) {
	for path, handle := range rpcCalls() {
		if path == runnerPath+"FetchSingleTask" && !s.opts.Forgejo {
			continue
		}
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { s.serveRPC(w, r, path, handle) })
	}
}

func (s *Server) serveRPC(w http.ResponseWriter, r *http.Request, path string, handle func(*Server, *rpc) response) {
	c := &rpc{r: r}
	decoder := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&c.request)
	s.lock()
	defer s.core.Mu.Unlock()
	s.core.Requests[path]++
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case media != "application/json":
		s.addViolation("request", r, "the simulator accepts only JSON")
		writeResponse(w, response{status: http.StatusUnsupportedMediaType})
	case err != nil:
		s.addViolation("request", r, "decode message: "+err.Error())
		writeResponse(w, newRPCError(codeInvalid, err.Error()))
	case s.core.Occurs(s.core.Faults().ServerError):
		writeResponse(w, response{status: http.StatusBadGateway})
	default:
		writeResponse(w, s.handleRPC(c, path, handle))
	}
	s.core.Wake()
}

func (s *Server) handleRPC(c *rpc, path string, handle func(*Server, *rpc) response) response {
	if path == pingPath+"Ping" || path == runnerPath+"Register" {
		return handle(s, c)
	}
	uuid, token := c.r.Header.Get("X-Runner-Uuid"), c.r.Header.Get("X-Runner-Token")
	for _, r := range s.runners {
		if r.uuid == uuid && subtle.ConstantTimeCompare([]byte(r.token), []byte(token)) == 1 {
			c.runner = r
		}
	}
	if c.runner == nil {
		return newRPCError(codeUnauthenticated, "unregistered runner")
	}
	c.runner.onlineAt = s.now()
	return handle(s, c)
}

func (s *Server) ping(c *rpc) response {
	return newOK(map[string]string{"data": "Hello, " + c.request.Data + "!"})
}

func encodeRunnerMessage(r *runner, token string) map[string]any {
	out := map[string]any{
		"id": strconv.FormatInt(r.id, 10), "uuid": r.uuid, "name": r.name, "version": r.version,
		"labels": r.labels, "ephemeral": r.ephemeral,
	}
	if token != "" {
		out["token"] = token
	}
	return map[string]any{"runner": out}
}

func (s *Server) registerRunner(c *rpc) response {
	if s.core.Occurs(s.core.Faults().RegistrationRefused) {
		return newRPCError(codeUnavailable, "an injected fault")
	}
	if c.request.Token == "" || c.request.Name == "" {
		return newRPCError(codeUnknown, "missing runner token, name")
	}
	for scope, token := range s.registrationTokens {
		if token == c.request.Token {
			r := s.newRunner(c.request.Name, scope)
			r.version, r.labels, r.ephemeral = c.request.Version, c.request.Labels, c.request.Ephemeral
			if !r.ephemeral {
				s.addViolation("request", c.r, "the runner is not ephemeral")
			}
			return newOK(encodeRunnerMessage(r, r.token))
		}
	}
	return newRPCError(codeUnknown, "runner registration token not found")
}

func (s *Server) declareRunner(c *rpc) response {
	if s.core.Occurs(s.core.Faults().RegistrationRefused) {
		return newRPCError(codeUnavailable, "an injected fault")
	}
	c.runner.labels, c.runner.version = c.request.Labels, c.request.Version
	return newOK(encodeRunnerMessage(c.runner, ""))
}

// fetchTask assigns the oldest job that the runner may run, or the job of the handle.
func (s *Server) fetchTask(c *rpc) response {
	noTask := newOK(map[string]any{"tasksVersion": "1"})
	switch {
	case c.runner.disabled, c.runner.ephemeral && c.runner.hasRunJob:
		return noTask
	case c.runner.job != nil:
		s.addViolation("request", c.r, "the runner requests a job although it has one")
		return noTask
	}
	var found *job
	for _, j := range s.jobs {
		matchesHandle := c.request.Handle == "" || c.request.Handle == j.handle
		if j.status == statusWaiting && c.runner.canRun(j) && matchesHandle && (found == nil || j.id < found.id) {
			found = j
		}
	}
	if found == nil || c.r.Context().Err() != nil { // a closed connection cannot receive the job
		return noTask
	}
	s.startJob(found, c.runner)
	return newOK(map[string]any{"tasksVersion": "1", "task": s.encodeTask(found)})
}

// encodeTask returns a job as its runner receives it. The workflow has only this job.
func (s *Server) encodeTask(j *job) map[string]any {
	script := j.command
	if script == "" {
		script = "sleep " + strconv.FormatFloat(j.duration.Seconds(), 'f', -1, 64)
	}
	workflow, err := json.Marshal(map[string]any{ // JSON is valid YAML
		"name": "CI", "on": "push", "jobs": map[string]any{"build": map[string]any{
			"name": j.name, "runs-on": j.labels, "steps": []any{map[string]any{"run": script}},
		}},
	})
	if err != nil { // cannot happen: the values are strings
		s.opts.Log.Error("encode workflow", "error", err)
	}
	return map[string]any{
		"id": strconv.FormatInt(j.task, 10), "workflowPayload": workflow,
		"context": map[string]any{
			"repository": j.repo.path, "repository_owner": j.repo.owner(), "event_name": "push", "job": "build",
			"run_id": strconv.FormatInt(j.run, 10), "gitea_default_actions_url": "https://github.com",
		},
		"secrets": map[string]string{}, "needs": map[string]any{}, "vars": map[string]string{},
	}
}

// findJob returns the job of a runner's task, or nil.
func (s *Server) findJob(c *rpc, task number) *job {
	for _, j := range s.jobs {
		if j.task != 0 && j.task == int64(task) && j.ranID == c.runner.id {
			return j
		}
	}
	return nil
}

func (s *Server) updateTask(c *rpc) response {
	j := s.findJob(c, c.request.State.ID)
	if j == nil {
		return newRPCError(codeUnknown, "invalid runner for task")
	}
	results := map[string]string{
		"RESULT_SUCCESS": statusSuccess, "RESULT_FAILURE": statusFailure, "RESULT_CANCELLED": statusCancelled,
		"RESULT_SKIPPED": statusFailure,
	}
	if !j.isFinished() {
		j.touchedAt, c.runner.activeAt = s.now(), s.now()
		switch result, ok := results[c.request.State.Result]; {
		case ok:
			s.finishJob(j, result)
		case c.request.State.Result != "RESULT_UNSPECIFIED" && c.request.State.Result != "":
			s.addViolation("request", c.r, "result "+c.request.State.Result+" is unknown")
		}
	}
	state := map[string]any{"id": strconv.FormatInt(j.task, 10), "result": "RESULT_UNSPECIFIED"}
	for name, status := range results {
		if status == j.status && name != "RESULT_SKIPPED" {
			state["result"] = name
		}
	}
	return newOK(map[string]any{"state": state, "sentOutputs": []string{}})
}

func (s *Server) updateLog(c *rpc) response {
	j := s.findJob(c, c.request.TaskID)
	if j == nil {
		return newRPCError(codeUnknown, "invalid runner for task")
	}
	j.touchedAt, c.runner.activeAt = s.now(), s.now()
	for i, row := range c.request.Rows {
		if int(c.request.Index)+i >= len(j.log) {
			j.log = append(j.log, row.Content)
		}
	}
	return newOK(map[string]any{"ackIndex": strconv.Itoa(len(j.log))})
}
