// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	applesilicon "github.com/scaleway/scaleway-sdk-go/api/applesilicon/v1alpha1"
	"github.com/scaleway/scaleway-sdk-go/scw"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

// State is the state of a server as far as callers need it.
type State string

// The states.
const (
	// Usable servers are delivered and running.
	Usable State = "Usable"
	// Working servers are being delivered, restarted, wiped or updated.
	Working State = "Working"
	// Broken servers need Scaleway's support or a wipe.
	Broken State = "Broken"
	// Locked servers are locked by Scaleway.
	Locked State = "Locked"
)

// Server is a Mac.
type Server struct {
	ID, Name, Type string
	State          State
	// Status is Scaleway's name of the state, for messages.
	Status string
	// IP is empty until the server has one.
	IP string
	// SSHUser can become root with Password.
	SSHUser  string
	Password log.Secret
	OS       string
	// DeletableAt is when the minimum rental period of the Mac ends.
	DeletableAt time.Time
	// DeletionScheduled is true if Scaleway deletes the server at DeletableAt.
	DeletionScheduled bool
	Created           time.Time
}

// Order is the request for a new server.
type Order struct {
	// Name with which the server is found again. It must be unique for each machine.
	Name string
	// Type is the server type, such as M4-S.
	Type string
	// OSID is the ID of an operating system (Client.FindOS). If it is empty, the server gets the
	// default of its type.
	OSID string
}

func newServer(s *applesilicon.Server) Server {
	out := Server{
		ID: s.ID, Name: s.Name, Type: s.Type, Status: string(s.Status), State: stateOf(s),
		SSHUser: s.SSHUsername, Password: log.NewSecret(s.SudoPassword), DeletionScheduled: s.DeletionScheduled,
	}

	if s.IP != nil && !s.IP.IsUnspecified() {
		out.IP = s.IP.String()
	}

	if s.Os != nil {
		out.OS = s.Os.Name
	}

	if s.DeletableAt != nil {
		out.DeletableAt = *s.DeletableAt
	}

	if s.CreatedAt != nil {
		out.Created = *s.CreatedAt
	}

	return out
}

func stateOf(s *applesilicon.Server) State {
	switch s.Status {
	case applesilicon.ServerStatusReady:
		if s.Delivered {
			return Usable
		}

		return Working
	case applesilicon.ServerStatusError:
		return Broken
	case applesilicon.ServerStatusLocked, applesilicon.ServerStatusLocking:
		return Locked
	default:
		return Working
	}
}

// List returns all servers of the project in the zone, oldest first.
func (c *Client) List(ctx context.Context) ([]Server, error) {
	var out []Server

	err := c.call(ctx, "list servers", func(opt scw.RequestOption) error {
		size := uint32(pageSize)

		list, err := c.macs.ListServers(&applesilicon.ListServersRequest{
			Zone: c.zone, ProjectID: &c.project, PageSize: &size,
		}, opt, scw.WithAllPages())
		if err != nil {
			return err
		}

		for _, s := range list.Servers {
			out = append(out, newServer(s))
		}

		return nil
	})
	if err != nil {
		return nil, err
	}

	slices.SortStableFunc(out, func(a, b Server) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})

	return out, nil
}

// Find returns the oldest server with the name. It ignores servers that are scheduled for deletion.
// Names are not unique at Scaleway.
func (c *Client) Find(ctx context.Context, name string) (Server, bool, error) {
	servers, err := c.List(ctx)
	if err != nil {
		return Server{}, false, fmt.Errorf("find server %s: %w", name, err)
	}

	i := slices.IndexFunc(servers, func(s Server) bool { return s.Name == name && !s.DeletionScheduled })
	if i < 0 {
		return Server{}, false, nil
	}

	return servers[i], true, nil
}

// Get returns one server.
func (c *Client) Get(ctx context.Context, id string) (Server, error) {
	return c.callServer(ctx, "get server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.GetServer(&applesilicon.GetServerRequest{Zone: c.zone, ServerID: id}, opt)
	})
}

// Order orders a server, whose delivery takes minutes. The order is never retried. After an
// error, IsOrderRejected reports whether nothing was ordered.
func (c *Client) Order(ctx context.Context, order Order) (Server, error) {
	req := &applesilicon.CreateServerRequest{
		Zone: c.zone, ProjectID: c.project, Name: order.Name, Type: order.Type,
		CommitmentType: applesilicon.CommitmentTypeDuration24h,
	}

	if order.OSID != "" {
		req.OsID = &order.OSID
	}

	return c.callServer(ctx, "order server "+order.Name, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.CreateServer(req, opt)
	})
}

// Rename renames a server.
func (c *Client) Rename(ctx context.Context, id, name string) error {
	_, err := c.callServer(ctx, "name server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.UpdateServer(&applesilicon.UpdateServerRequest{Zone: c.zone, ServerID: id, Name: &name}, opt)
	})

	return err
}

// Reboot restarts a server.
func (c *Client) Reboot(ctx context.Context, id string) error {
	_, err := c.callServer(ctx, "restart server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.RebootServer(&applesilicon.RebootServerRequest{Zone: c.zone, ServerID: id}, opt)
	})

	return err
}

// Wipe reinstalls a server. All data on its disk is lost, and the server gets a new host key and
// password.
func (c *Client) Wipe(ctx context.Context, id string) error {
	_, err := c.callServer(ctx, "wipe server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.ReinstallServer(&applesilicon.ReinstallServerRequest{Zone: c.zone, ServerID: id}, opt)
	})

	return err
}

// ScheduleDeletion makes Scaleway delete a server at the end of its minimum rental period.
func (c *Client) ScheduleDeletion(ctx context.Context, id string) error {
	enabled := true

	_, err := c.callServer(ctx, "schedule deletion of server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.UpdateServer(&applesilicon.UpdateServerRequest{Zone: c.zone, ServerID: id, ScheduleDeletion: &enabled}, opt)
	})

	return err
}

// Delete deletes a server. Scaleway rejects the call before Server.DeletableAt.
func (c *Client) Delete(ctx context.Context, id string) error {
	return c.call(ctx, "delete server "+id, func(opt scw.RequestOption) error {
		return c.macs.DeleteServer(&applesilicon.DeleteServerRequest{Zone: c.zone, ServerID: id}, opt)
	})
}

// FindOS returns the ID of the operating system with the name that is available for a server type.
func (c *Client) FindOS(ctx context.Context, serverType, name string) (string, error) {
	id := ""
	size := uint32(pageSize)

	err := c.call(ctx, "list operating systems", func(opt scw.RequestOption) error {
		list, err := c.macs.ListOS(&applesilicon.ListOSRequest{
			Zone: c.zone, ServerType: &serverType, Name: &name, PageSize: &size,
		}, opt, scw.WithAllPages())
		if err != nil {
			return err
		}

		for _, os := range list.Os {
			if os.Name == name {
				id = os.ID
			}
		}

		return nil
	})
	if err != nil {
		return "", err
	}

	if id == "" {
		return "", &Error{Kind: Rejected, Message: fmt.Sprintf(
			"there is no operating system %q for servers of type %s: "+
				"delete the machine, and create it with one from the API's list, or without os", name, serverType)}
	}

	return id, nil
}

// Hardware describes a server type. Memory is in MiB.
type Hardware struct {
	Cores    int
	MemoryMB int
}

// Hardware returns the hardware of a server type.
func (c *Client) Hardware(ctx context.Context, serverType string) (Hardware, error) {
	var out Hardware

	err := c.call(ctx, "get server type "+serverType, func(opt scw.RequestOption) error {
		response, err := c.macs.GetServerType(&applesilicon.GetServerTypeRequest{Zone: c.zone, ServerType: serverType}, opt)
		if err != nil {
			return err
		}

		if response.CPU != nil {
			out.Cores = int(response.CPU.CoreCount)
		}

		if response.Memory != nil {
			out.MemoryMB = int(response.Memory.Capacity >> 20)
		}

		return nil
	})

	return out, err
}

func (c *Client) callServer(
	ctx context.Context, operation string, send func(scw.RequestOption) (*applesilicon.Server, error),
) (Server, error) {
	var out Server

	err := c.call(ctx, operation, func(opt scw.RequestOption) error {
		response, err := send(opt)
		if err == nil {
			out = newServer(response)
		}

		return err
	})

	return out, err
}
