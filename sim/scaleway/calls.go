// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

func (s *Simulator) withServer(handle func(*http.Request, *Server) response) func(*http.Request) response {
	return func(r *http.Request) response {
		server := s.findServer(r.PathValue("id"))
		if server == nil {
			return newErrorResponse(http.StatusNotFound, newNotFoundBody("apple_silicon_server", r.PathValue("id")))
		}

		return handle(r, server)
	}
}

// encodeServer returns a server in the API's format.
func (s *Simulator) encodeServer(server *Server) object {
	var ip any
	if server.IP != "" {
		ip = server.IP
	}

	return object{
		"id": server.ID, "type": server.Type, "name": server.Name, "project_id": s.opts.Project,
		"organization_id": s.opts.Project, "ip": ip, "vnc_url": "", "ssh_username": "m1",
		"sudo_password": server.Password, "vnc_port": 5900, "os": s.encodeOS(server.OS), "status": server.Status,
		"created_at": server.CreatedAt.Format(time.RFC3339), "updated_at": server.CreatedAt.Format(time.RFC3339),
		"deletable_at": server.DeletableAt.Format(time.RFC3339), "deletion_scheduled": server.DeletionScheduled,
		"zone": server.Zone, "delivered": server.Delivered, "vpc_status": "vpc_disabled",
		"commitment": object{"type": "duration_24h", "cancelled": false}, "public_bandwidth_bps": 1000000000,
		"tags": []string{}, "applied_runner_configuration_ids": []string{}, "kext_enabled": false,
	}
}

func (s *Simulator) computeOSID(name string) string {
	i := slices.Index(s.opts.OS, name)

	return "0000000" + string(rune('a'+i)) + "-05e5-4e4a-9000-000000000000"
}

func (s *Simulator) encodeOS(name string) object {
	return object{
		"id": s.computeOSID(name), "name": name, "label": name, "zone": s.opts.Zone, "tags": []string{},
		"supported_server_types": []object{},
	}
}

func (s *Simulator) listServers(r *http.Request) response {
	if project := r.URL.Query().Get("project_id"); project != "" && project != s.opts.Project {
		return response{http.StatusOK, object{"total_count": 0, "servers": []object{}}}
	}

	part, err := cutPage(r, s.servers)
	if err != nil {
		return newInvalidResponse("page", err.Error())
	}

	out := []object{}
	for _, server := range part {
		out = append(out, s.encodeServer(server))
	}

	return response{http.StatusOK, object{"total_count": len(s.servers), "servers": out}}
}

func (s *Simulator) createServer(r *http.Request) response {
	var input struct {
		Name           string  `json:"name"`
		ProjectID      string  `json:"project_id"`
		Type           string  `json:"type"`
		OSID           *string `json:"os_id"`
		EnableVPC      bool    `json:"enable_vpc"`
		CommitmentType string  `json:"commitment_type"`
		Bandwidth      uint64  `json:"public_bandwidth_bps"`
		EnableKext     bool    `json:"enable_kext"`
	}
	if err := s.decodeBody(r, &input); err != nil {
		return newInvalidResponse("body", err.Error())
	}

	os := s.opts.OS[0]
	if input.OSID != nil {
		i := slices.IndexFunc(s.opts.OS, func(name string) bool { return s.computeOSID(name) == *input.OSID })
		if i < 0 {
			return newInvalidResponse("os_id", "no such operating system")
		}

		os = s.opts.OS[i]
	}

	kind := slices.IndexFunc(s.opts.Types, func(t Type) bool { return t.Name == input.Type })

	switch {
	case input.ProjectID != s.opts.Project:
		return newErrorResponse(http.StatusForbidden, object{
			"type": "permissions_denied", "message": "insufficient permissions",
			"details": []object{{"resource": "apple_silicon", "action": "write"}},
		})
	case kind < 0:
		return newInvalidResponse("type", "no such type")
	case input.Name == "" || input.CommitmentType != "duration_24h":
		return newInvalidResponse("name", "name and commitment_type are required")
	case s.opts.Quota > 0 && len(s.servers) >= s.opts.Quota:
		return newErrorResponse(http.StatusForbidden, object{
			"type": "quotas_exceeded", "message": "quota exceeded(s)",
			"details": []object{{"resource": "apple_silicon_servers", "quota": s.opts.Quota, "current": len(s.servers)}},
		})
	case s.opts.Types[kind].Stock == 0:
		return newErrorResponse(http.StatusServiceUnavailable, object{
			"type": "out_of_stock", "resource": input.Type, "message": "resource is out of stock",
		})
	}

	if s.opts.Types[kind].Stock > 0 {
		s.opts.Types[kind].Stock--
	}

	return response{http.StatusOK, s.encodeServer(s.installServer(input.Name, input.Type, os, s.opts.DeliveryTime))}
}

func (s *Simulator) getServer(_ *http.Request, server *Server) response {
	return response{http.StatusOK, s.encodeServer(server)}
}

func (s *Simulator) updateServer(r *http.Request, server *Server) response {
	var input struct {
		Name             *string `json:"name"`
		ScheduleDeletion *bool   `json:"schedule_deletion"`
	}
	if err := s.decodeBody(r, &input); err != nil {
		return newInvalidResponse("body", err.Error())
	}

	if input.Name != nil {
		server.Name = *input.Name
	}

	if input.ScheduleDeletion != nil {
		server.DeletionScheduled = *input.ScheduleDeletion
	}

	return response{http.StatusOK, s.encodeServer(server)}
}

func (s *Simulator) deleteServer(_ *http.Request, server *Server) response {
	if s.now().Before(server.DeletableAt) {
		return newErrorResponse(http.StatusPreconditionFailed, object{
			"type": "precondition_failed", "precondition": "unknown_precondition",
			"help_message": "server cannot be deleted before " + server.DeletableAt.Format(time.RFC3339),
			"message":      "precondition failed",
		})
	}

	s.servers = slices.DeleteFunc(s.servers, func(other *Server) bool { return other == server })
	s.reportChange(server, Deleted)

	return response{http.StatusNoContent, nil}
}

// refuseBusy returns the error response for a call that a busy server refuses, and true if the
// server is busy.
func refuseBusy(server *Server) (response, bool) {
	return newErrorResponse(http.StatusConflict, object{
		"type": "transient_state", "resource": "apple_silicon_server", "resource_id": server.ID,
		"current_state": server.Status, "message": "resource is in a transient state",
	}), !server.BusyUntil.IsZero()
}

func (s *Simulator) rebootServer(_ *http.Request, server *Server) response {
	if refusal, isBusy := refuseBusy(server); isBusy {
		return refusal
	}

	server.Status, server.BusyUntil = statusRebooting, s.now().Add(s.opts.RebootTime)

	return response{http.StatusOK, s.encodeServer(server)}
}

func (s *Simulator) reinstallServer(r *http.Request, server *Server) response {
	var input struct {
		OSID       *string `json:"os_id"`
		EnableKext bool    `json:"enable_kext"`
	}
	if err := s.decodeBody(r, &input); err != nil {
		return newInvalidResponse("body", err.Error())
	}

	if refusal, isBusy := refuseBusy(server); isBusy {
		return refusal
	}

	server.Status, server.BusyUntil = statusReinstalling, s.now().Add(s.opts.ReinstallTime)
	s.setCredentials(server)

	return response{http.StatusOK, s.encodeServer(server)}
}

func (s *Simulator) listOS(r *http.Request) response {
	var found []string

	for _, name := range s.opts.OS {
		if strings.HasPrefix(name, r.URL.Query().Get("name")) {
			found = append(found, name)
		}
	}

	part, err := cutPage(r, found)
	if err != nil {
		return newInvalidResponse("page", err.Error())
	}

	out := []object{}
	for _, name := range part {
		out = append(out, s.encodeOS(name))
	}

	return response{http.StatusOK, object{"total_count": len(found), "os": out}}
}

func (s *Simulator) getType(r *http.Request) response {
	i := slices.IndexFunc(s.opts.Types, func(t Type) bool { return t.Name == r.PathValue("type") })
	if i < 0 {
		return newErrorResponse(http.StatusNotFound, newNotFoundBody("server_type", r.PathValue("type")))
	}

	t := s.opts.Types[i]

	return response{http.StatusOK, object{
		"name": t.Name, "stock": "high_stock", "zone": s.opts.Zone,
		"cpu":    object{"name": "Apple M4", "core_count": t.Cores, "frequency": 4400000000, "sockets": 1, "threads_per_core": 1},
		"memory": object{"capacity": int64(t.MemoryGB) << 30, "type": "LPDDR5X"},
	}}
}

func (s *Simulator) listKeys(r *http.Request) response {
	part, err := cutPage(r, s.keys)
	if err != nil {
		return newInvalidResponse("page", err.Error())
	}

	out := []object{}
	for _, key := range part {
		out = append(out, s.encodeKey(key))
	}

	return response{http.StatusOK, object{"total_count": len(s.keys), "ssh_keys": out}}
}

func (s *Simulator) encodeKey(key Key) object {
	return object{
		"id": key.ID, "name": key.Name, "public_key": key.PublicKey, "fingerprint": "", "project_id": s.opts.Project,
		"organization_id": s.opts.Project, "disabled": key.Disabled,
		"created_at": key.CreatedAt.Format(time.RFC3339), "updated_at": key.CreatedAt.Format(time.RFC3339),
	}
}

func (s *Simulator) createKey(r *http.Request) response {
	var input struct {
		Name      string `json:"name"`
		PublicKey string `json:"public_key"`
		ProjectID string `json:"project_id"`
	}
	if err := s.decodeBody(r, &input); err != nil {
		return newInvalidResponse("body", err.Error())
	}

	if input.ProjectID != s.opts.Project || input.Name == "" || len(strings.Fields(input.PublicKey)) < 2 {
		return newInvalidResponse("public_key", "name, public_key and project_id are required")
	}

	key := Key{ID: s.newID(), Name: input.Name, PublicKey: input.PublicKey, CreatedAt: s.now()}
	s.keys = append(s.keys, key)

	return response{http.StatusOK, s.encodeKey(key)}
}
