// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

func (s *Simulator) withServer(handle func(*http.Request, *Server) answer) func(*http.Request) answer {
	return func(r *http.Request) answer {
		server := s.find(r.PathValue("id"))
		if server == nil {
			return refuse(http.StatusNotFound, notFound("apple_silicon_server", r.PathValue("id")))
		}

		return handle(r, server)
	}
}

// body is a server in the API's form.
func (s *Simulator) body(server *Server) object {
	var ip any
	if server.IP != "" {
		ip = server.IP
	}

	return object{
		"id": server.ID, "type": server.Type, "name": server.Name, "project_id": s.opts.Project,
		"organization_id": s.opts.Project, "ip": ip, "vnc_url": "", "ssh_username": "m1",
		"sudo_password": server.Password, "vnc_port": 5900, "os": s.osBody(server.OS), "status": server.Status,
		"created_at": server.Created.Format(time.RFC3339), "updated_at": server.Created.Format(time.RFC3339),
		"deletable_at": server.Deletable.Format(time.RFC3339), "deletion_scheduled": server.Leaving,
		"zone": server.Zone, "delivered": server.Delivered, "vpc_status": "vpc_disabled",
		"commitment": object{"type": "duration_24h", "cancelled": false}, "public_bandwidth_bps": 1000000000,
		"tags": []string{}, "applied_runner_configuration_ids": []string{}, "kext_enabled": false,
	}
}

func (s *Simulator) osID(name string) string {
	i := slices.Index(s.opts.OS, name)

	return "0000000" + string(rune('a'+i)) + "-05e5-4e4a-9000-000000000000"
}

func (s *Simulator) osBody(name string) object {
	return object{
		"id": s.osID(name), "name": name, "label": name, "zone": s.opts.Zone, "tags": []string{},
		"supported_server_types": []object{},
	}
}

func (s *Simulator) listServers(r *http.Request) answer {
	if project := r.URL.Query().Get("project_id"); project != "" && project != s.opts.Project {
		return answer{http.StatusOK, object{"total_count": 0, "servers": []object{}}}
	}

	part, err := page(r, s.servers)
	if err != nil {
		return invalid("page", err.Error())
	}

	out := []object{}
	for _, server := range part {
		out = append(out, s.body(server))
	}

	return answer{http.StatusOK, object{"total_count": len(s.servers), "servers": out}}
}

func (s *Simulator) createServer(r *http.Request) answer {
	var in struct {
		Name           string  `json:"name"`
		ProjectID      string  `json:"project_id"`
		Type           string  `json:"type"`
		OSID           *string `json:"os_id"`
		EnableVPC      bool    `json:"enable_vpc"`
		CommitmentType string  `json:"commitment_type"`
		Bandwidth      uint64  `json:"public_bandwidth_bps"`
		EnableKext     bool    `json:"enable_kext"`
	}
	if err := s.read(r, &in); err != nil {
		return invalid("body", err.Error())
	}

	os := s.opts.OS[0]
	if in.OSID != nil {
		i := slices.IndexFunc(s.opts.OS, func(name string) bool { return s.osID(name) == *in.OSID })
		if i < 0 {
			return invalid("os_id", "no such operating system")
		}

		os = s.opts.OS[i]
	}

	kind := slices.IndexFunc(s.opts.Types, func(t Type) bool { return t.Name == in.Type })

	switch {
	case in.ProjectID != s.opts.Project:
		return refuse(http.StatusForbidden, object{
			"type": "permissions_denied", "message": "insufficient permissions",
			"details": []object{{"resource": "apple_silicon", "action": "write"}},
		})
	case kind < 0:
		return invalid("type", "no such type")
	case in.Name == "" || in.CommitmentType != "duration_24h":
		return invalid("name", "name and commitment_type are needed")
	case s.opts.Quota > 0 && len(s.servers) >= s.opts.Quota:
		return refuse(http.StatusForbidden, object{
			"type": "quotas_exceeded", "message": "quota exceeded(s)",
			"details": []object{{"resource": "apple_silicon_servers", "quota": s.opts.Quota, "current": len(s.servers)}},
		})
	case s.opts.Types[kind].Stock == 0:
		return refuse(http.StatusServiceUnavailable, object{
			"type": "out_of_stock", "resource": in.Type, "message": "resource is out of stock",
		})
	}

	if s.opts.Types[kind].Stock > 0 {
		s.opts.Types[kind].Stock--
	}

	return answer{http.StatusOK, s.body(s.install(in.Name, in.Type, os, s.opts.Deliver))}
}

func (s *Simulator) getServer(_ *http.Request, server *Server) answer {
	return answer{http.StatusOK, s.body(server)}
}

func (s *Simulator) updateServer(r *http.Request, server *Server) answer {
	var in struct {
		Name             *string `json:"name"`
		ScheduleDeletion *bool   `json:"schedule_deletion"`
	}
	if err := s.read(r, &in); err != nil {
		return invalid("body", err.Error())
	}

	if in.Name != nil {
		server.Name = *in.Name
	}

	if in.ScheduleDeletion != nil {
		server.Leaving = *in.ScheduleDeletion
	}

	return answer{http.StatusOK, s.body(server)}
}

func (s *Simulator) deleteServer(_ *http.Request, server *Server) answer {
	if s.now().Before(server.Deletable) {
		return refuse(http.StatusPreconditionFailed, object{
			"type": "precondition_failed", "precondition": "unknown_precondition",
			"help_message": "server cannot be deleted before " + server.Deletable.Format(time.RFC3339),
			"message":      "precondition failed",
		})
	}

	s.servers = slices.DeleteFunc(s.servers, func(other *Server) bool { return other == server })
	s.changed(server, Deleted)

	return answer{http.StatusNoContent, nil}
}

// busy refuses what a server that works can't do.
func busy(server *Server) (answer, bool) {
	return refuse(http.StatusConflict, object{
		"type": "transient_state", "resource": "apple_silicon_server", "resource_id": server.ID,
		"current_state": server.Status, "message": "resource is in a transient state",
	}), !server.Until.IsZero()
}

func (s *Simulator) rebootServer(_ *http.Request, server *Server) answer {
	if refusal, is := busy(server); is {
		return refusal
	}

	server.Status, server.Until = statusRebooting, s.now().Add(s.opts.Reboot)

	return answer{http.StatusOK, s.body(server)}
}

func (s *Simulator) reinstallServer(r *http.Request, server *Server) answer {
	var in struct {
		OSID       *string `json:"os_id"`
		EnableKext bool    `json:"enable_kext"`
	}
	if err := s.read(r, &in); err != nil {
		return invalid("body", err.Error())
	}

	if refusal, is := busy(server); is {
		return refusal
	}

	server.Status, server.Until = statusReinstalling, s.now().Add(s.opts.Reinstall)
	s.equip(server)

	return answer{http.StatusOK, s.body(server)}
}

func (s *Simulator) listOS(r *http.Request) answer {
	var found []string

	for _, name := range s.opts.OS {
		if strings.HasPrefix(name, r.URL.Query().Get("name")) {
			found = append(found, name)
		}
	}

	part, err := page(r, found)
	if err != nil {
		return invalid("page", err.Error())
	}

	out := []object{}
	for _, name := range part {
		out = append(out, s.osBody(name))
	}

	return answer{http.StatusOK, object{"total_count": len(found), "os": out}}
}

func (s *Simulator) getType(r *http.Request) answer {
	i := slices.IndexFunc(s.opts.Types, func(t Type) bool { return t.Name == r.PathValue("type") })
	if i < 0 {
		return refuse(http.StatusNotFound, notFound("server_type", r.PathValue("type")))
	}

	t := s.opts.Types[i]

	return answer{http.StatusOK, object{
		"name": t.Name, "stock": "high_stock", "zone": s.opts.Zone,
		"cpu":    object{"name": "Apple M4", "core_count": t.Cores, "frequency": 4400000000, "sockets": 1, "threads_per_core": 1},
		"memory": object{"capacity": int64(t.MemoryGB) << 30, "type": "LPDDR5X"},
	}}
}

func (s *Simulator) listKeys(r *http.Request) answer {
	part, err := page(r, s.keys)
	if err != nil {
		return invalid("page", err.Error())
	}

	out := []object{}
	for _, key := range part {
		out = append(out, s.keyBody(key))
	}

	return answer{http.StatusOK, object{"total_count": len(s.keys), "ssh_keys": out}}
}

func (s *Simulator) keyBody(key Key) object {
	return object{
		"id": key.ID, "name": key.Name, "public_key": key.PublicKey, "fingerprint": "", "project_id": s.opts.Project,
		"organization_id": s.opts.Project, "disabled": key.Disabled,
		"created_at": key.Created.Format(time.RFC3339), "updated_at": key.Created.Format(time.RFC3339),
	}
}

func (s *Simulator) createKey(r *http.Request) answer {
	var in struct {
		Name      string `json:"name"`
		PublicKey string `json:"public_key"`
		ProjectID string `json:"project_id"`
	}
	if err := s.read(r, &in); err != nil {
		return invalid("body", err.Error())
	}

	if in.ProjectID != s.opts.Project || in.Name == "" || len(strings.Fields(in.PublicKey)) < 2 {
		return invalid("public_key", "name, public_key and project_id are needed")
	}

	key := Key{ID: s.id(), Name: in.Name, PublicKey: in.PublicKey, Created: s.now()}
	s.keys = append(s.keys, key)

	return answer{http.StatusOK, s.keyBody(key)}
}
