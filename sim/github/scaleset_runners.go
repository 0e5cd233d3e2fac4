// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"net/http"
	"strconv"
	"strings"
)

type agentEntry struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	ScaleSetID int64  `json:"runnerScaleSetId"`
}

// encodeAgent returns a runner as the Actions service represents it.
func encodeAgent(r *runner) agentEntry {
	out := agentEntry{ID: r.id, Name: r.name}
	if r.set != nil {
		out.ScaleSetID = r.set.id
	}
	return out
}

// generateJIT registers a runner of the set that has not connected yet.
func (c *setCall) generateJIT() {
	var req struct {
		Name       string `json:"name"`
		WorkFolder string `json:"workFolder"`
	}
	if !c.readBody(&req) {
		return
	}
	if text := checkRunnerName(req.Name); text != "" {
		writeException(c.w, http.StatusBadRequest, "VssPropertyValidationException", text)
		return
	}
	if c.s.findRunner(c.scope, req.Name) != nil {
		writeException(c.w, http.StatusConflict, "AgentExistsException",
			"A runner exists with the same name: "+req.Name+".")
		return
	}
	r := c.s.newRunner(c.scope, req.Name, c.set.group)
	r.ephemeral, r.jit, r.set = true, true, c.set
	for _, l := range c.set.labels {
		c.s.addLabel(r, l.Name, readOnly)
	}
	blob, err := c.s.encodeConfig(r, requestBaseURL(c.r), req.WorkFolder, c.set.setting.DisableUpdate)
	if err != nil {
		writeException(c.w, http.StatusInternalServerError, "VssServiceException", err.Error())
		return
	}
	writeJSON(c.w, http.StatusOK, map[string]any{
		"runner":           encodeAgent(r),
		"encodedJITConfig": blob,
	})
}

// listAgents lists the runners of the caller's scope. If the call names a runner, it lists only
// this runner.
func (c *setCall) listAgents() {
	name, list := c.r.URL.Query().Get("agentName"), []agentEntry{}
	for _, r := range c.s.listScopeRunners(c.scope) {
		if name == "" || strings.EqualFold(r.name, name) {
			list = append(list, encodeAgent(r))
		}
	}
	writeJSON(c.w, http.StatusOK, map[string]any{"count": len(list), "value": list})
}

// findAgent returns the runner that the path names. If the runner is missing, findAgent writes the
// response and returns nil.
func (c *setCall) findAgent() *runner {
	id, err := strconv.ParseInt(c.r.PathValue("agent"), 10, 64)
	if r := c.s.runners[id]; err == nil && r != nil && r.scope == c.scope {
		return r
	}
	writeException(c.w, http.StatusNotFound, "AgentNotFoundException", "No agent found with identifier "+c.r.PathValue("agent")+".")
	return nil
}

func (c *setCall) getAgent() {
	if r := c.findAgent(); r != nil {
		writeJSON(c.w, http.StatusOK, encodeAgent(r))
	}
}

// deleteAgent deletes a runner. It rejects the call while the runner runs a job.
func (c *setCall) deleteAgent() {
	switch r := c.findAgent(); {
	case r == nil:
	case r.isBusy() || c.s.core.Occurs(c.s.core.Faults().DeleteBusy):
		writeException(c.w, http.StatusBadRequest, "JobStillRunningException",
			"Runner "+r.name+" is still running a job.")
	default:
		c.s.unregisterRunner(r)
		writeJSON(c.w, http.StatusNoContent, nil)
	}
}
