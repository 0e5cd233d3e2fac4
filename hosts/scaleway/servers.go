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

// State is how a server is, as far as a caller has to know.
type State string

// The states.
const (
	// Usable servers are delivered and run.
	Usable State = "Usable"
	// Working servers are being delivered, restarted, wiped or updated.
	Working State = "Working"
	// Broken servers need Scaleway or a wipe.
	Broken State = "Broken"
	// Locked servers are held by Scaleway.
	Locked State = "Locked"
)

// Server is a Mac.
type Server struct {
	ID, Name, Type, Zone string
	State                State
	// Status in Scaleway's word, for people.
	Status string
	// IP is empty until there is one.
	IP string
	// SSHUser may become root with Password.
	SSHUser  string
	Password log.Secret
	OS       string
	// DeletableAt is when the least time that a Mac is leased for is over.
	DeletableAt time.Time
	// Leaving servers are deleted by Scaleway at DeletableAt.
	Leaving bool
	Created time.Time
}

// Order says what to order.
type Order struct {
	// Name finds the server again, so no two machines have the same.
	Name string
	// Type such as M4-S.
	Type string
	// OSID is an operating system's id (Client.OS); empty for the type's default.
	OSID string
}

func serverOf(s *applesilicon.Server) Server {
	out := Server{
		ID: s.ID, Name: s.Name, Type: s.Type, Zone: string(s.Zone), Status: string(s.Status), State: stateOf(s),
		SSHUser: s.SSHUsername, Password: log.NewSecret(s.SudoPassword), Leaving: s.DeletionScheduled,
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

// List gives all servers of the project in the zone, the oldest first.
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
			out = append(out, serverOf(s))
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

// Find gives the oldest server of a name. Names are not unique at Scaleway.
func (c *Client) Find(ctx context.Context, name string) (Server, bool, error) {
	servers, err := c.List(ctx)
	if err != nil {
		return Server{}, false, fmt.Errorf("find server %s: %w", name, err)
	}

	i := slices.IndexFunc(servers, func(s Server) bool { return s.Name == name && !s.Leaving })
	if i < 0 {
		return Server{}, false, nil
	}

	return servers[i], true, nil
}

// Get gives one server.
func (c *Client) Get(ctx context.Context, id string) (Server, error) {
	return c.server(ctx, "get server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.GetServer(&applesilicon.GetServerRequest{Zone: c.zone, ServerID: id}, opt)
	})
}

// Order orders a server, which takes minutes to be delivered. It is not repeated: see
// Decided for what an error means.
func (c *Client) Order(ctx context.Context, order Order) (Server, error) {
	req := &applesilicon.CreateServerRequest{
		Zone: c.zone, ProjectID: c.project, Name: order.Name, Type: order.Type,
		CommitmentType: applesilicon.CommitmentTypeDuration24h,
	}

	if order.OSID != "" {
		req.OsID = &order.OSID
	}

	return c.server(ctx, "order server "+order.Name, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.CreateServer(req, opt)
	})
}

// Rename names a server.
func (c *Client) Rename(ctx context.Context, id, name string) error {
	_, err := c.server(ctx, "name server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.UpdateServer(&applesilicon.UpdateServerRequest{Zone: c.zone, ServerID: id, Name: &name}, opt)
	})

	return err
}

// Reboot restarts a server.
func (c *Client) Reboot(ctx context.Context, id string) error {
	_, err := c.server(ctx, "restart server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.RebootServer(&applesilicon.RebootServerRequest{Zone: c.zone, ServerID: id}, opt)
	})

	return err
}

// Wipe installs a server anew: all that is on its disk is gone, and it gets another host
// key and password.
func (c *Client) Wipe(ctx context.Context, id string) error {
	_, err := c.server(ctx, "wipe server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.ReinstallServer(&applesilicon.ReinstallServerRequest{Zone: c.zone, ServerID: id}, opt)
	})

	return err
}

// Leave has Scaleway delete a server as soon as its least time is over.
func (c *Client) Leave(ctx context.Context, id string) error {
	yes := true

	_, err := c.server(ctx, "schedule deletion of server "+id, func(opt scw.RequestOption) (*applesilicon.Server, error) {
		return c.macs.UpdateServer(&applesilicon.UpdateServerRequest{Zone: c.zone, ServerID: id, ScheduleDeletion: &yes}, opt)
	})

	return err
}

// Delete gives a server back. Before Server.DeletableAt Scaleway refuses.
func (c *Client) Delete(ctx context.Context, id string) error {
	return c.call(ctx, "delete server "+id, func(opt scw.RequestOption) error {
		return c.macs.DeleteServer(&applesilicon.DeleteServerRequest{Zone: c.zone, ServerID: id}, opt)
	})
}

// OS gives the id of an operating system that a type of server can have, by its name.
func (c *Client) OS(ctx context.Context, serverType, name string) (string, error) {
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
			"there is no operating system %q for servers of type %s: choose one of the API's list, or leave os away", name, serverType)}
	}

	return id, nil
}

// Hardware is what a type of server has, its memory in units of 2^20 bytes.
type Hardware struct {
	Cores    int
	MemoryMB int
}

// Hardware gives what a type of server has.
func (c *Client) Hardware(ctx context.Context, serverType string) (Hardware, error) {
	var out Hardware

	err := c.call(ctx, "get server type "+serverType, func(opt scw.RequestOption) error {
		got, err := c.macs.GetServerType(&applesilicon.GetServerTypeRequest{Zone: c.zone, ServerType: serverType}, opt)
		if err != nil {
			return err
		}

		if got.CPU != nil {
			out.Cores = int(got.CPU.CoreCount)
		}

		if got.Memory != nil {
			out.MemoryMB = int(got.Memory.Capacity >> 20)
		}

		return nil
	})

	return out, err
}

func (c *Client) server(
	ctx context.Context, verb string, do func(scw.RequestOption) (*applesilicon.Server, error),
) (Server, error) {
	var out Server

	err := c.call(ctx, verb, func(opt scw.RequestOption) error {
		got, err := do(opt)
		if err == nil {
			out = serverOf(got)
		}

		return err
	})

	return out, err
}
