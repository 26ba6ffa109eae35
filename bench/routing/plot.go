package main

import (
	"bytes"
	"fmt"
	"math"
)

// Sizes of the plot, in pixels.
const (
	rowHeight   = 26
	panelWidth  = 220
	panelGap    = 24
	labelWidth  = 300
	marginTop   = 64
	marginRight = 20
	axisHeight  = 40
)

// The least and the most seconds on the axis, which is logarithmic.
const leastSeconds, mostSeconds = 0.1, 300

// plot returns a picture, SVG, of the time to the first token: a panel for each load, a
// row for each policy, a line from the median to the 95th percentile.
func plot(results []result) []byte {
	var b bytes.Buffer
	rows := len(policies)
	width := labelWidth + len(loads)*(panelWidth+panelGap) - panelGap + marginRight
	bottom := marginTop + rows*rowHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13">`+"\n", width, bottom+axisHeight)
	fmt.Fprintf(&b, `<title>Time to the first token by routing policy and load</title>`+"\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, bottom+axisHeight)
	fmt.Fprintf(&b, `<text x="12" y="24" font-size="15" font-weight="600">Time to the first token, seconds: median ● to 95th percentile ○</text>`+"\n")
	for panel, load := range loads {
		left := labelWidth + panel*(panelWidth+panelGap)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%.0f %% load</text>`+"\n", left+panelWidth/2, marginTop-12, 100*load)
		for _, tick := range []float64{0.1, 1, 10, 100} {
			x := left + position(tick)
			fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ddd"/>`+"\n", x, marginTop, x, bottom)
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="#666">%g</text>`+"\n", x, bottom+18, tick)
		}
		row := 0
		for i := range results {
			r := &results[i]
			if r.load != load {
				continue
			}
			y := marginTop + row*rowHeight + rowHeight/2
			row++
			color, weight := "#64748b", "400"
			if r.policy == oursName {
				color, weight = "#c2410c", "600"
			}
			if panel == 0 {
				fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end" font-weight="%s">%s</text>`+"\n", labelWidth-12, y+4, weight, r.policy)
			}
			f := r.figures()
			from, to := left+position(f.first50), left+position(f.first95)
			fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2"/>`+"\n", from, y, to, y, color)
			fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="4.5" fill="%s"/><circle cx="%d" cy="%d" r="4.5" fill="#fff" stroke="%s" stroke-width="2"/>`+"\n", from, y, color, to, y, color)
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// position returns the place of a time on the axis.
func position(seconds float64) int {
	part := math.Log(seconds/leastSeconds) / math.Log(mostSeconds/leastSeconds)
	return int(math.Round(panelWidth * min(max(part, 0), 1)))
}
