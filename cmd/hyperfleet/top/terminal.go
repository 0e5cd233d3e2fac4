// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/gdamore/tcell/v3"
)

// runInteractive draws frames on the alternate screen of the terminal and handles keys, until the user quits
// or ctx ends. It then restores the terminal.
func (w *watcher) runInteractive(ctx context.Context, interval time.Duration) error {
	// Some terminals print the queries of a negotiation, and top needs none of the features.
	terminal, err := tcell.NewScreen(tcell.OptNegotiation(false))
	if err == nil {
		err = terminal.Init()
	}

	if err != nil {
		return fmt.Errorf("set up terminal: %w", err)
	}

	defer terminal.Fini()

	tick := w.clock.NewTicker(interval)
	defer tick.Stop()

	for {
		current, err := w.takeSnapshot(ctx)
		if err != nil {
			return err
		}

		width, height := terminal.Size()
		draw(terminal, w.state.render(current, width, height))

		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		case event := <-terminal.EventQ():
			switch event := event.(type) {
			case *tcell.EventError:
				return fmt.Errorf("read keys: %w", event)
			case *tcell.EventKey:
				if w.handleKey(ctx, keyName(event), current) {
					return nil
				}
			}
		case show := <-w.loaded:
			show()
		}
	}
}

// handleKey updates the state for a key press. If the user asks for a log or for details, it opens a pane and loads
// them for the selected row in the background. hasQuit is true if the user quits.
func (w *watcher) handleKey(ctx context.Context, key string, current snapshot) (hasQuit bool) {
	wanted := w.state.handleKey(key, current)
	if wanted == actionNone || wanted == actionQuit {
		return wanted == actionQuit
	}

	shownList := w.state.shownList
	selected := w.state.visibleTable(current).rows[w.state.views[shownList].selected].objectKey

	opened := &pane{lines: []string{selected.String(), "", "Loading..."}}
	w.state.pane = opened

	load, scroll := w.loadDetails, 0
	if wanted == actionLog {
		load, scroll = w.loadLog, math.MaxInt32 // the end of the log
	}

	go func() {
		lines := load(ctx, shownList, selected)

		select {
		case w.loaded <- func() { opened.lines, opened.scroll = lines, scroll }:
		case <-ctx.Done():
		}
	}()

	return false
}

// draw replaces the content of the terminal. The terminal sends only what has changed.
func draw(terminal tcell.Screen, lines []line) {
	terminal.Clear()

	for y, l := range lines {
		terminal.PutStrStyled(0, y, l.text, l.style)
	}

	terminal.Show()
}

// keyName returns the name of a key, and "" if the key has no meaning.
func keyName(event *tcell.EventKey) string {
	if event.Key() == tcell.KeyRune {
		return event.Str()
	}

	return map[tcell.Key]string{
		tcell.KeyUp: keyUp, tcell.KeyDown: keyDown, tcell.KeyPgUp: keyPageUp, tcell.KeyPgDn: keyPageDown, tcell.KeyEnter: keyEnter,
		tcell.KeyEscape: keyEscape, tcell.KeyTab: keyTab, tcell.KeyBackspace: keyErase, tcell.KeyCtrlC: keyStop,
	}[event.Key()]
}
